"""The stacks of every process of a run, into its log: on a stall, and when somebody asks (the verb ``dump``)."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from eagle3.runner import identity, proctable, rundir, state
from eagle3.runner.errors import VerbError
from eagle3.runner.identity import Stat

ANSWER_S = 2.0
"""Seconds that a process has for its stacks, and that the next one waits, so that two dumps do not mix."""
LONGEST_S = 20.0
_SETTLED_S = 0.15
_MAX_NAMED = 8


class Dumped(NamedTuple):
    """A process that was asked. ``rank`` is torchrun's number, None where it is no rank; ``why`` says why no stack came."""

    pid: int
    rank: Optional[int]
    why: str = ""


def catches(pid: int, number: int = signal.SIGUSR1) -> bool:
    """Whether the process has a handler for the signal (``SigCgt`` of its status): others would die of it."""
    try:
        text = (identity.PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return found is not None and bool(int(found.group(1), 16) >> (number - 1) & 1)


def dump(run_dir: Path, attempt: int, *, by: str = "") -> Dict[str, Any]:
    """Ask every process that bears the attempt's marker for its stacks, one after the other.

    Answers ``{"dumped": [...], "silent": [...], "unable": [...], "text", "log"}``: who wrote its stacks, who has a handler but
    wrote nothing in time, and who has none and was left alone. Takes at most about ``LONGEST_S``.
    Raises OSError where the log cannot be opened.
    """
    log = state.attempt_dir(run_dir, attempt) / "run.log"
    deadline = time.monotonic() + LONGEST_S
    dumped: List[Dumped] = []
    silent: List[Dumped] = []
    unable: List[Dumped] = []
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for process in sorted(proctable.marked(str(run_dir), attempt), key=lambda p: (p.start_ticks, p.pid)):
            if "supervise" in proctable.command_line(process.pid):
                continue
            asked = Dumped(process.pid, _rank(process.pid))
            if not catches(process.pid):
                unable.append(asked._replace(why=f"{_short_name(process.pid)} has no handler"))
            elif time.monotonic() >= deadline:
                silent.append(asked._replace(why="not asked: the others took too long"))
            elif _ask(process, asked, descriptor, by):
                dumped.append(asked)
            else:
                silent.append(asked._replace(why=_whereabouts(process.pid)))
    finally:
        os.close(descriptor)
    groups = {"dumped": dumped, "silent": silent, "unable": unable}
    answer: Dict[str, Any] = {name: [one._asdict() for one in group] for name, group in groups.items()}
    return {**answer, "text": _sentence(dumped, silent, unable), "log": f"attempts/{attempt}/run.log"}


def dump_last(run_dir: Path, by: str) -> Dict[str, Any]:
    """The verb ``dump``: the stacks of the run's last attempt. Raises VerbError("usage") where nothing of it runs."""
    summary = state.summary(run_dir, time.time())
    if summary["state"] not in state.LIVE:
        raise VerbError("usage", f"The run {run_dir.name} is {summary['state']}: it has no stacks.", "Read its log.")
    answer = dump(run_dir, int(summary["attempt"]), by=by)
    row = {
        "v": 1, "attempt": summary["attempt"], "t": time.time(), "kind": "stack_dump", "level": "info",
        "actor": by or "helper", "text": answer["text"],
    }  # fmt: skip
    rundir.append_line(run_dir / "events.jsonl", row)
    return {"run_id": run_dir.name, "attempt": summary["attempt"], **answer}


def _ask(process: Stat, asked: Dumped, log: int, by: str) -> bool:
    """Whether the process wrote to the log after the signal, and has stopped doing so (or used up its time)."""
    who = f"rank {asked.rank}" if asked.rank is not None else _short_name(asked.pid)
    os.write(
        log, f"\nrunner: stacks of {who}, pid {asked.pid}{f', asked for by {by}' if by else ''}:\n".encode("utf-8", "replace")
    )
    before = os.fstat(log).st_size
    if not proctable.send((process.pid, process.start_ticks), signal.SIGUSR1):
        return False
    end = time.monotonic() + ANSWER_S
    size, changed_at = before, time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.02)
        now_size = os.fstat(log).st_size
        if now_size != size:
            size, changed_at = now_size, time.monotonic()
        elif size > before and time.monotonic() - changed_at > _SETTLED_S:
            break
    return size > before


def _rank(pid: int) -> Optional[int]:
    number = proctable.environment(pid).get("RANK", "")
    return int(number) if number.isdigit() else None


def _short_name(pid: int) -> str:
    return proctable.name(pid)[:40]


def _whereabouts(pid: int) -> str:
    """What can be said of a process that does not answer: "D" is a call into a disk or a driver that hangs."""
    found = identity.stat(pid)
    if found is None:
        return "it has ended"
    hangs = " (a disk or a driver hangs)" if found.state == "D" else ""
    return f"it did not answer in {ANSWER_S:.0f} s; state {found.state}{hangs}"


def _sentence(dumped: List[Dumped], silent: List[Dumped], unable: List[Dumped]) -> str:
    parts = [f"stacks of {_names(dumped)} are in the log" if dumped else "no stack could be written"]
    if silent:
        parts.append(f"none from {_names(silent)}")
    if unable:
        parts.append(f"without a handler: {_names(unable)}")
    return "; ".join(parts)


def _names(group: List[Dumped]) -> str:
    named = [
        f"{f'rank {one.rank}, ' if one.rank is not None else ''}pid {one.pid}{f' ({one.why})' if one.why else ''}"
        for one in group
    ]
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return ", ".join(named[:_MAX_NAMED]) + more
