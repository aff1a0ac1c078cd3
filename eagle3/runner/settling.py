"""Telling the end of a run whose supervisor was killed: whoever looks at the workspace next has it told, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, List

from eagle3.runner import alert_ledger, detach, identity, state
from eagle3.runner.errors import complain
from eagle3.runner.rundir import read_object


def spawn_due(run_dirs: Iterable[Path]) -> List[Path]:
    """Have what is untold told by processes of their own, which outlive the helper; the runs concerned."""
    found = [run_dir for run_dir in run_dirs if is_due(run_dir)]
    for run_dir in found:
        _spawn(run_dir)
    return found


def is_due(run_dir: Path) -> bool:
    """Whether the run wants alerts, its last attempt is over or unwatched for good, and nobody has told its end."""
    try:
        if not read_object(run_dir / "launch.json").get("hooks"):
            return False
        numbers = state.attempts(run_dir)
        if not numbers:
            return False
        folder = state.attempt_dir(run_dir, numbers[-1])
        started = read_object(folder / "started.json")
        if not started or identity.alive(started) or identity.alive(started.get("supervisor") or {}):
            return False
        return not alert_ledger.Ledger(folder).known(f"end-{numbers[-1]}")
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        complain(f"the alerts of {run_dir.name} cannot be understood: {error}")
        return False


def _spawn(run_dir: Path) -> None:
    attempt = state.attempts(run_dir)[-1]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        log = os.open(state.attempt_dir(run_dir, attempt) / "run.log", flags, 0o600)
        try:
            arguments = ["settle", str(run_dir), f"--attempt={attempt}"]
            detach.spawn(arguments, log=log, cwd=run_dir, env=detach.child_environment({}))
        finally:
            os.close(log)
    except OSError as error:
        complain(f"the end of {run_dir.name} cannot be told now: {error}")
