"""Asking a run that works to pause, to go on, or to save now. The request is ``control.json``; the worker reads it between two
units of work, and it holds for one attempt only.

A pause holds the worker: nothing is freed, its servers, memory and GPUs stay its own. Whoever wants them freed stops the run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict

from eagle3.runner import rundir, state
from eagle3.runner.errors import VerbError, from_os_error

ACTIONS = ("pause", "go-on", "checkpoint")


def control(run_dir: Path, action: str, actor: str = "") -> Dict[str, Any]:
    """Write the request; answers at once with ``{"run_id","attempt","action","state","stage","already"}``.

    ``stage`` is where the worker is. "pause" holds it after the unit of work under way (a step, which is saved first; an
    answer; a state); "go-on" ends a pause; "checkpoint" saves after the step under way: in other stages than train everything
    finished is on disk anyway. ``already``: it is paused, or goes on, as asked.

    Raises VerbError: usage (the action), not_found, failed (the run does not work), disk and permission.
    """
    if action not in ACTIONS:
        raise VerbError("usage", f"{action!r} is nothing that a run can be asked for.", f"Use {', '.join(ACTIONS)}.")
    if not (run_dir / "launch.json").exists():
        raise VerbError("not_found", f"There is no run {run_dir.name} in {run_dir.parent.parent}.", "`eagle3 ls` lists them.")
    found = state.summary(run_dir, time.time())
    if found["state"] not in state.LIVE:
        text = f"{run_dir.name} is not running: {found['state_text'] or found['state']}."
        raise VerbError("failed", text, "`eagle3 resume` starts it again.")
    attempt = int(found["attempt"])
    before = state.control_request(run_dir, attempt)
    now = {"by": actor, "t": time.time()}
    request = {"v": 1, "attempt": attempt, "pause": before.get("pause"), "checkpoint": before.get("checkpoint")}
    already = action != "checkpoint" and bool(before.get("pause")) == (action == "pause")
    if action == "checkpoint":
        request["checkpoint"] = now
    elif not already:
        request["pause"] = now if action == "pause" else None
    if not already:
        try:
            rundir.write_json(run_dir / "control.json", request)
        except OSError as error:
            raise from_os_error(error, f"asking the run {run_dir.name} to {action}") from error
    stage = str((found["progress"] or {}).get("stage") or "")
    return {
        "run_id": run_dir.name, "attempt": attempt, "action": action, "state": found["state"], "stage": stage, "already": already,
    }  # fmt: skip


def hold(run_dir: Path, attempt: int, by: str) -> None:
    """The worker's own pause, for a guard that tripped: as somebody else's, and ended as theirs. Raises OSError."""
    before = state.control_request(run_dir, attempt)
    request = {"v": 1, "attempt": attempt, "pause": {"by": by, "t": time.time()}, "checkpoint": before.get("checkpoint")}
    rundir.write_json(run_dir / "control.json", request)
