"""A run directory and a context for stages, without a runner."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core import presets
from eagle3.journal import Journal
from eagle3.stages.context import StageContext

SMOLLM2 = Path(os.environ.get("EAGLE3_CACHE", "~/.cache/eagle3")).expanduser() / "targets" / "smollm2-135m"


def context(
    run_dir: Path, *, stop: Callable[[], bool] = lambda: False, model_dir: Path = SMOLLM2, **overrides: Any
) -> StageContext:
    """A context for the smoke size on a CPU; overrides use ``__`` for the dot of a dotted key."""
    run_dir.mkdir(parents=True, exist_ok=True)
    spec = presets.resolve("smoke", "smollm2-135m", "cpu", {key.replace("__", "."): value for key, value in overrides.items()})
    return StageContext(
        run_dir=run_dir,
        spec=spec,
        journal=Journal(run_dir, 1),
        model_dir=model_dir,
        worker_python=sys.executable,
        server_python=sys.executable,
        stop_requested=stop,
    )
