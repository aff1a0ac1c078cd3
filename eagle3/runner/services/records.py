"""What is written down of services that yielded: ``yielded.json``, ``restored.json``, and how to start them again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from eagle3.runner import rundir, state
from eagle3.runner.services import turns

Record = Dict[str, Any]


def outstanding(run_dir: Path, failed: bool = False) -> List[Tuple[int, Record]]:
    """The attempts whose services were stopped on this machine by this user and have not been started again, in order.
    With ``failed`` also those where starting them again has failed."""
    found = []
    for attempt in state.attempts(run_dir):
        folder = state.attempt_dir(run_dir, attempt)
        yielded = rundir.read_object(folder / "yielded.json")
        here = yielded.get("host") == turns.host() and yielded.get("uid") == os.geteuid()
        if here and _waiting(folder, yielded, failed):
            found.append((attempt, yielded))
    return found


def elsewhere(run_dir: Path) -> List[Tuple[str, str]]:
    """Services that were stopped on another machine, or under another name of this one, and have not been started again: name
    and host. Nobody here may start them: the other machine may live and share this disk."""
    found = []
    for attempt in state.attempts(run_dir):
        folder = state.attempt_dir(run_dir, attempt)
        yielded = rundir.read_object(folder / "yielded.json")
        if yielded.get("host") != turns.host() and _waiting(folder, yielded, False):
            found += [(str(entry.get("name")), str(yielded.get("host"))) for entry in yielded["services"]]
    return found


def _waiting(folder: Path, yielded: Record, failed: bool) -> bool:
    if not isinstance(yielded.get("services"), list):
        return False
    restored = rundir.read_object(folder / "restored.json")
    wrong = failed and any(o.get("outcome") == "failed" for o in restored.get("services") or [])
    return restored.get("turn") != yielded.get("turn") or wrong


def write_yielded(folder: Path, attempt: int, turn: int, entries: List[Record]) -> None:
    """``yielded.json``: before anything is stopped. Raises OSError."""
    rundir.write_json(
        folder / "yielded.json",
        {
            "v": 1,
            "attempt": attempt,
            "t": time.time(),
            "turn": turn,
            "host": turns.host(),
            "uid": os.geteuid(),
            "services": entries,
        },
    )


def write_restored(folder: Path, attempt: int, turn: Any, actor: str, outcomes: List[Record]) -> None:
    """``restored.json``: what became of each service of the ``yielded.json`` with the same turn. Raises OSError."""
    rundir.write_json(
        folder / "restored.json",
        {"v": 1, "attempt": attempt, "t": time.time(), "turn": turn, "actor": actor, "services": outcomes},
    )


def hand_over(attempts: List[int], run_dir: Path, to: int) -> None:
    """Earlier attempts' services are attempt ``to``'s to restore now: its ``yielded.json`` lists them. Raises OSError."""
    for attempt in attempts:
        folder = state.attempt_dir(run_dir, attempt)
        yielded = rundir.read_object(folder / "yielded.json")
        text = f"to attempt {to}"
        outcomes = [{"name": entry["name"], "outcome": "handed over", "text": text} for entry in yielded["services"]]
        write_restored(folder, attempt, yielded["turn"], "supervisor", outcomes)


def same(one: Record, other: Record) -> bool:
    """Whether two entries are about the same service."""
    keys = ("unit", "process")
    return [one.get(key) for key in keys] == [other.get(key) for key in keys]


def keep(folder: Path, name: str, known: Record) -> str:
    """Write what a process needs to be started again, with its secrets, for this user only; returns its path."""
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        view = memoryview(rundir.encode(known))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return str(path)


def kept(entry: Record) -> Record:
    """What ``keep`` wrote. Raises OSError, ValueError."""
    found: Record = json.loads(Path(entry["kept"]).read_bytes().decode("utf-8"))
    return found


def tidy(run_dir: Path) -> None:
    """Remove what was kept for services that run again, where whoever started them died before doing so."""
    files = [file for n in state.attempts(run_dir) for file in state.attempt_dir(run_dir, n).glob(".yielded-*")]
    if files and turns.is_free(run_dir, turns.newest(run_dir)):
        needed = {entry.get("kept") for _, yielded in outstanding(run_dir, failed=True) for entry in yielded["services"]}
        for file in files:
            if str(file) not in needed:
                with contextlib.suppress(OSError):  # another helper tidies too, or it is another user's
                    file.unlink()


def forget(entry: Record) -> None:
    """Remove what ``keep`` wrote, secrets and all."""
    with contextlib.suppress(OSError, KeyError):  # it is gone already
        Path(entry["kept"]).unlink()
