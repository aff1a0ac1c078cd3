"""Which process is meant: a pid alone is reused, so it goes with its start ticks, the boot and PID 1's start.

Start ticks are clock ticks since boot. PID 1's start ticks tell one life of a container from the next on the same
host, where ``boot_id`` stays the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Identity = Dict[str, Any]
"""``{"pid", "start_ticks", "boot_id", "pid1_start_ticks", "host"}``"""


class Stat(NamedTuple):
    """What is used of ``/proc/<pid>/stat``. ``cpu_s`` counts the process and the children it has waited for."""

    pid: int
    state: str
    ppid: int
    start_ticks: int
    cpu_s: float
    rss_bytes: int


def stat(pid: int) -> Optional[Stat]:
    """The process table's entry of ``pid``, or None where there is none."""
    try:
        raw = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command stands in brackets and may hold anything, brackets and blanks too: fields begin after the last ')'.
    fields: List[bytes] = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    cpu_ticks = sum(int(fields[i]) for i in (11, 12, 13, 14))
    return Stat(
        pid=pid,
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        start_ticks=int(fields[19]),
        cpu_s=cpu_ticks / TICKS_PER_S,
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


def boot_id() -> str:
    """The kernel's id of this boot, empty where it does not say."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def pid1_start_ticks() -> int:
    """Start ticks of PID 1 as seen here, 0 where it cannot be seen."""
    first = stat(1)
    return first.start_ticks if first else 0


def of(pid: int) -> Identity:
    """The identity of the process ``pid``; its ``start_ticks`` is 0 where it is not there any more."""
    found = stat(pid)
    return {
        "pid": pid,
        "start_ticks": found.start_ticks if found else 0,
        "boot_id": boot_id(),
        "pid1_start_ticks": pid1_start_ticks(),
        "host": socket.gethostname(),
    }


def same_world(identity: Identity) -> bool:
    """Whether the identity was taken in this boot and this life of the container: only then can it be looked up."""
    return bool(identity) and identity.get("boot_id") == boot_id() and identity.get("pid1_start_ticks") == pid1_start_ticks()


def alive(identity: Identity) -> bool:
    """Whether exactly that process runs here now. A zombie is dead, and so is a pid that another process has."""
    if not identity or not same_world(identity):
        return False
    return is_running(identity.get("pid"), identity.get("start_ticks"))


def is_running(pid: Any, start_ticks: Any) -> bool:
    """As ``alive`` for a pid and start ticks known to be of this boot and container."""
    if not isinstance(pid, int) or pid < 1 or not start_ticks:
        return False
    found = stat(pid)
    return found is not None and found.start_ticks == start_ticks and found.state not in ("Z", "X", "x")
