"""Asking a run that works to pause, to go on, or to save now. The request is ``control.json``; the worker reads it between two
units of work, and it holds for one attempt only.

A pause holds the worker: nothing is freed, its servers, memory and GPUs stay its own. Whoever wants them freed stops the run.
People and guards hold a run independently (``eagle3.runner.holds``): none's hold takes another's name or ends with it.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Optional

from eagle3.runner import holds, rundir, state
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.folder_lock import locked

NAME = "control.json"
ACTIONS = ("pause", "go-on", "checkpoint")
_GUARD_WAIT_S = 1.0
"""A guard's hold comes from loops that wait for nothing long. A lock that is held longer is a dead writer's."""


def control(run_dir: Path, action: str, actor: str = "", lift: Optional[Iterable[Any]] = None) -> Dict[str, Any]:
    """Write the request; answers at once with ``{"run_id","attempt","action","state","stage","already","lifted","held"}``.

    ``stage`` is where the worker is. "pause" holds it after the unit of work under way (a step, which is saved first; an
    answer; a state); "go-on" ends the holds ``lift``, pairs of "by" and "t" (all of them where it is None); "checkpoint" saves
    after the step under way: in other stages than train everything finished is on disk anyway. ``already``: a person has paused
    it, or nothing of ``lift`` holds it, as asked. ``lifted``: the holds that this ended; ``held``: those that still stand.

    Raises VerbError: usage (the action, ``lift``), not_found, failed (the run does not work), busy, disk and permission.
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
    with locked(run_dir, NAME):
        before = state.control_request(run_dir, attempt)
        standing = holds.of(before)
        left, checkpoint = standing, before.get("checkpoint")
        if action == "checkpoint":
            checkpoint = {"by": actor, "t": time.time()}
        elif action == "pause":
            left = holds.with_person(standing, actor, time.time())
        else:
            try:
                left = holds.without(standing, lift)
            except (TypeError, ValueError, LookupError) as error:
                raise VerbError("usage", f"{lift!r} names no pauses.", 'Give pairs of "by" and "t", or nothing.') from error
        already = action != "checkpoint" and left == standing
        if not already:
            _write(run_dir, attempt, left, checkpoint, action)
    stage = str((found["progress"] or {}).get("stage") or "")
    lifted = [hold for hold in standing if hold not in left]
    return {
        "run_id": run_dir.name, "attempt": attempt, "action": action, "state": found["state"], "stage": stage,
        "already": already, "lifted": lifted, "held": left,
    }  # fmt: skip


def _write(run_dir: Path, attempt: int, left: "list[holds.Hold]", checkpoint: Any, action: str) -> None:
    request = {"v": 1, "attempt": attempt, "pause": holds.written(left), "checkpoint": checkpoint}
    try:
        rundir.write_json(run_dir / NAME, request)
    except OSError as error:
        raise from_os_error(error, f"asking the run {run_dir.name} to {action}") from error


def hold(run_dir: Path, attempt: int, guard: str) -> None:
    """The pause of the guard of that name, beside whatever else holds the run; "go-on" ends it. Raises OSError."""
    with contextlib.ExitStack() as lock:
        with contextlib.suppress(VerbError):  # a guard's hold is worth more than a request that comes in the same moment
            lock.enter_context(locked(run_dir, NAME, wait_s=_GUARD_WAIT_S))
        before = state.control_request(run_dir, attempt)
        left = holds.with_guard(holds.of(before), guard, time.time())
        request = {"v": 1, "attempt": attempt, "pause": holds.written(left), "checkpoint": before.get("checkpoint")}
        rundir.write_json(run_dir / NAME, request)
