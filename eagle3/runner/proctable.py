"""Questions to the process table: descendants, bearers of a run's marker, command lines, ends of whole trees."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple

from eagle3.runner import identity, redact
from eagle3.runner.identity import PROC, Stat

Process = Tuple[int, int]
"""(pid, start ticks): enough to name a process of this boot and container."""


def snapshot() -> Dict[int, Stat]:
    """Every process that can be seen, by pid."""
    table = {}
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            found = identity.stat(int(entry.name))
            if found is not None:
                table[found.pid] = found
    return table


def is_live(found: Stat) -> bool:
    """Neither a zombie nor being removed."""
    return found.state not in ("Z", "X", "x")


def descendants(roots: Iterable[int], table: Dict[int, Stat]) -> List[Stat]:
    """The live descendants of ``roots`` (the roots left out), parents before children."""
    children: Dict[int, List[Stat]] = {}
    for found in table.values():
        children.setdefault(found.ppid, []).append(found)
    result: List[Stat] = []
    seen: Set[int] = set(roots)
    queue = list(seen)
    while queue:
        for child in children.get(queue.pop(0), []):
            if child.pid not in seen:
                seen.add(child.pid)
                queue.append(child.pid)
                if is_live(child):
                    result.append(child)
    return result


def environment(pid: int) -> Dict[str, str]:
    """The environment with which ``pid`` was started; empty where it may not be read (another user's)."""
    pairs = (item.partition(b"=") for item in _raw_environment(pid).split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape") for key, _, value in pairs}


def _raw_environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs as much as the read
            return file.readall() or b""
    except OSError:
        return b""


def command_line(pid: int) -> List[str]:
    """The arguments of ``pid``, empty where they cannot be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def owner(pid: int) -> Optional[int]:
    """The user id under which ``pid`` acts, None where it is gone."""
    # Not the owner of the folder in /proc: that is root for a process that has changed its user.
    try:
        raw = (PROC / str(pid) / "status").read_bytes()
    except OSError:
        return None
    found = re.search(rb"^Uid:\s+\d+\s+(\d+)", raw, re.MULTILINE)
    return int(found.group(1)) if found else None


def is_ours(pid: int) -> bool:
    """Whether ``pid`` belongs to this user. Root's runner does not own other users' processes either."""
    return owner(pid) == os.geteuid()


def marked(run_dir: str, attempt: int, table: Optional[Dict[int, Stat]] = None) -> List[Stat]:
    """The live processes of this user that bear the marker of the run and attempt in their environment."""
    return bearing({"EAGLE3_RUN_DIR": run_dir, "EAGLE3_ATTEMPT": str(attempt)}, table)


def bearing(marker: Dict[str, str], table: Optional[Dict[int, Stat]] = None) -> List[Stat]:
    """The live processes of this user that were started with all of these variables, this one left out."""
    # Asked in every loop that waits for processes to end, so the many that bear no marker must cost little.
    wanted = [os.fsencode(f"{name}={value}") for name, value in marker.items()]
    result = []
    for found in (table if table is not None else snapshot()).values():
        if found.pid != os.getpid() and is_live(found):
            raw = _raw_environment(found.pid)
            if wanted[0] in raw and set(wanted) <= set(raw.split(b"\0")) and is_ours(found.pid):
                result.append(found)
    return result


def send(process: Process, number: int) -> bool:
    """Signal exactly that process, if it is still there and this user's. True where the signal was sent."""
    pid, start_ticks = process
    if pid in (1, os.getpid()) or not identity.is_running(pid, start_ticks) or not is_ours(pid):
        return False
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def shown_command(pid: int, secrets: Iterable[str] = ()) -> List[str]:
    """The arguments of ``pid`` for people: without ``secrets``, those in its own environment, and what looks like one."""
    return redact.command(command_line(pid), (*secrets, *redact.secret_values(environment(pid))))


def name(pid: int, secrets: Iterable[str] = ()) -> str:
    """A short name for a person: the command as in ``shown_command``, or the kernel's name of it."""
    # Hidden before it is cut, here and by whoever cuts it again: nobody recognises a half of a secret.
    arguments = shown_command(pid, secrets)
    if arguments:
        return " ".join(arguments)[:120]
    return short_name(pid) or "?"


def short_name(pid: int) -> str:
    """The kernel's name of a process, at most 15 characters; empty where it is not in this process table."""
    try:
        return (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def end_all(
    find: Callable[[], List[Process]],
    *,
    grace_s: float,
    kill_wait_s: float = 5.0,
    tick: Callable[[], None] = lambda: None,
    poll_s: float = 0.05,
) -> List[Process]:
    """TERM, then KILL, everything that ``find`` gives, until it gives nothing; returns the survivors of the bounded wait.

    ``find`` is asked again at every step, so that a process born meanwhile is ended too. ``tick`` is called while
    waiting (to reap, to beat).
    """
    told: Set[Process] = set()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        left = find()
        if not left:
            return []
        for process in left:
            if process not in told:
                told.add(process)
                send(process, signal.SIGTERM)
        tick()
        time.sleep(poll_s)
    deadline = time.monotonic() + kill_wait_s
    while True:
        left = find()
        if not left:
            return []
        for process in left:
            send(process, signal.SIGKILL)
        tick()
        if time.monotonic() >= deadline:
            return left
        time.sleep(poll_s)
