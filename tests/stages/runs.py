"""A run directory and its context, made in tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core import presets
from eagle3.journal import Journal
from eagle3.stages.context import StageContext

TARGET = Path("~/.cache/eagle3/targets/smollm2-135m").expanduser()

QUESTIONS = (
    "Why does bread dough rise, and what is the yeast eating?",
    "Name three uses for an old bicycle wheel.",
    "Explain what a semaphore is to a ten-year-old.",
    "Write two sentences about the sea in winter.",
    "How many minutes are there in a day, and why?",
    "What should I pack for a week in the mountains?",
    "Give me a short recipe for lentil soup.",
    "Translate 'good morning' into French and Spanish.",
)


def context(
    run_dir: Path,
    *,
    size: str = "smoke",
    heldout: int = 8,
    stop_requested: Callable[[], bool] = lambda: False,
    **overrides: Any,
) -> StageContext:
    """A context of a run whose held-out prompts are on disk. ``overrides``: dotted fields with ``__`` for the dot."""
    spec = presets.resolve(size, "smollm2-135m", "cpu", {key.replace("__", "."): value for key, value in overrides.items()})
    (run_dir / "data").mkdir(parents=True, exist_ok=True)
    rows = [{"id": "train-0", "kind": "explain", "split": "train", "hash": "0", "turns": ["Never asked when evaluating."]}]
    rows += [
        {"id": f"held-{i}", "kind": "explain", "split": "heldout", "hash": str(i), "turns": [QUESTIONS[i % len(QUESTIONS)]]}
        for i in range(heldout)
    ]
    (run_dir / "data" / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return StageContext(run_dir, spec, Journal(run_dir, 1), TARGET, sys.executable, sys.executable, stop_requested)


def rows(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file of the run; none where it is missing."""
    path = run_dir / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
