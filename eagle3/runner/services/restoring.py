"""After a run: what yielded to it is started again, exactly once, by its supervisor or, where that died, by a helper."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

from eagle3.runner import adopt, detach, events, state
from eagle3.runner.errors import VerbError, complain
from eagle3.runner.services import records, servers, systemd, turns

Record = Dict[str, Any]

SETTLE_S = 20.0


def due(run_dir: Path) -> bool:
    """Whether services wait to be started again and nobody is about to: the run is over and its supervisor dead."""
    if not records.outstanding(run_dir) or not turns.is_free(run_dir, turns.newest(run_dir)):
        return False
    attempt, _ = state.facts(run_dir, time.time())
    summary = state.summary(run_dir, time.time())
    if summary["state"] in state.LIVE:
        return False
    # Where nothing tells of the end, what is left of the run may still hold the device: first somebody must stop it.
    return summary["ended_at"] is not None or not adopt.leftovers(run_dir, attempt)


def restore(run_dir: Path, actor: str, *, turn: Optional[int] = None, again: bool = False) -> List[Record]:
    """Start again what this run has stopped; the outcomes, empty where there is nothing to do or another is at it.

    ``turn`` is ours already (the supervisor's), else one is taken. With ``again`` what has failed before is tried once
    more. Never raises: what goes wrong is an event and stands in ``restored.json``.
    """
    outcomes: List[Record] = []
    try:
        if not records.outstanding(run_dir, again):
            return []
        own = turn or turns.take(run_dir)
        if own is None:
            return []
        try:
            for attempt, yielded in records.outstanding(run_dir, again):
                folder = state.attempt_dir(run_dir, attempt)
                done = [_again(entry, folder) for entry in yielded["services"]]
                for entry, outcome in zip(yielded["services"], done):
                    _tell(run_dir, attempt, entry, outcome, actor)
                records.write_restored(folder, attempt, yielded["turn"], actor, done)
                for entry, outcome in zip(yielded["services"], done):
                    if outcome["outcome"] != "failed":
                        records.forget(entry)
                outcomes += done
        finally:
            turns.give_back(run_dir, own)
    except (OSError, ValueError, KeyError, TypeError) as error:
        complain(f"services could not be started again, the next helper will try: {error}")
    return outcomes


def _again(entry: Record, folder: Path) -> Record:
    try:
        return {"name": entry["name"], **(_unit(entry) if entry["kind"] == "unit" else _process(entry, folder))}
    except (OSError, ValueError, systemd.SystemdError) as error:
        return {"name": entry["name"], "outcome": "failed", "text": str(error), "pid": 0}


def _unit(entry: Record) -> Record:
    properties = systemd.show(entry["unit"])
    if properties.get("ActiveState") in ("active", "activating", "reloading"):
        return {"outcome": "running already", "text": "", "pid": systemd.main_pid(properties)}
    systemd.start(entry["unit"])
    return {"outcome": "restored", "text": "", "pid": systemd.main_pid(systemd.show(entry["unit"]))}


def _process(entry: Record, folder: Path) -> Record:
    known = records.kept(entry)
    found = servers.running_again(known)
    if found is not None:
        return {"outcome": "running already", "text": "", "pid": found.pid, "start_ticks": found.start_ticks}
    started = servers.start(known, folder / "restored.log")
    return {"outcome": "restored", "text": "", "pid": started.pid, "start_ticks": started.start_ticks}


def _tell(run_dir: Path, attempt: int, entry: Record, outcome: Record, actor: str) -> None:
    name, pid = entry["name"], outcome.get("pid") or 0
    if outcome["outcome"] == "failed":
        text = f"{name}, stopped for this run, could not be started again: {outcome['text']}; start it by hand"
        events.append(run_dir, attempt, "service_failed", text, level="error", actor=actor)
        return
    how = "was running again already" if outcome["outcome"] == "running already" else "has been started again"
    text = f"{name}, stopped for this run, {how}{f' (pid {pid})' if pid else ''}"
    events.append(run_dir, attempt, "service_restored", text, actor=actor)


def spawn_due(run_dirs: Iterable[Path], actor: str) -> List[Path]:
    """Have what is due started again by processes of their own, which outlive the helper; the runs concerned."""
    found = [run_dir for run_dir in run_dirs if _is_due(run_dir)]
    for run_dir in found:
        spawn(run_dir, actor)
    return found


def settle(run_dirs: Iterable[Path], actor: str, deadline_s: float = SETTLE_S) -> None:
    """What other runs have left stopped is started again before a new run looks for what is in its way.

    Raises VerbError("busy") where that does not come to an end within ``deadline_s``.
    """
    waiting = spawn_due(run_dirs, actor)
    deadline = time.monotonic() + deadline_s
    while waiting:
        waiting = [run_dir for run_dir in waiting if records.outstanding(run_dir)]
        if waiting and time.monotonic() > deadline:
            text = f"What was stopped for the run {waiting[0].name} is just being started again."
            raise VerbError("busy", text, "Launch again in a minute: it is safe to repeat.")
        time.sleep(0.05)


def _is_due(run_dir: Path) -> bool:
    try:
        if (run_dir / "yielding").exists():
            records.tidy(run_dir)
        return due(run_dir)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        complain(f"whether {run_dir.name} has stopped services cannot be understood: {error}")
        return False


def spawn(run_dir: Path, actor: str, *, again: bool = False) -> None:
    """Start a detached process that restores."""
    numbers = state.attempts(run_dir)
    arguments = ["restore", str(run_dir), f"--actor={actor}", *(["--again"] if again else [])]
    try:
        log = os.open(
            state.attempt_dir(run_dir, numbers[-1]) / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            detach.spawn(arguments, log=log, cwd=run_dir, env=detach.child_environment({}))
        finally:
            os.close(log)
    except OSError as error:
        complain(f"what yielded to {run_dir.name} cannot be started again now: {error}")
