"""The deep check as a detached job: it outlives the link, and one at a time runs in a workspace."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

from eagle3.runner import jobs
from eagle3.runner.rundir import PathLike

LIMIT_S = 3600.0
"""Seconds that all probes but the canary may take together; each has its own, shorter limit."""


def start(workspace: PathLike, wants: Dict[str, Any], check_id: str = "", actor: str = "") -> Dict[str, Any]:
    """Start the deep probes of what ``wants`` asks for; ``{"check_id","already"}``. With a ``check_id`` it is safe to repeat.

    The probes run under this very Python, with the package that lies beside the helper: a worker's environment that is
    missing or broken is then something that they find, not something that keeps them from starting.
    """
    name = check_id or f"deep-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    argv = [sys.executable, "-m", "eagle3.readiness", "--wants", "wants.json", "--scratch", "scratch"]
    pythonpath = os.pathsep.join(filter(None, [str(package_home()), os.environ.get("PYTHONPATH", "")]))
    env = {"PYTHONPATH": pythonpath, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return jobs.start(
        workspace, name, "deep check", argv, files={"wants.json": wants}, env=env, limit_s=limit_s(wants), actor=actor
    )  # fmt: skip


def limit_s(wants: Dict[str, Any]) -> float:
    """Seconds after which the job is stopped: the canary of a large model may need an hour for its server alone."""
    said = (wants.get("expect") or {}).get("canary_s")
    return LIMIT_S + (float(said) if isinstance(said, (int, float)) else 0.0)


def package_home() -> Path:
    """The folder from which this ``eagle3`` can be imported: beside the zipapp, or that of the sources."""
    archive = getattr(globals().get("__loader__"), "archive", None)
    return Path(archive).resolve().parent / "site" if archive else Path(__file__).resolve().parents[2]
