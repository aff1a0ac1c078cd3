"""How much of the machine's CPU went to others while something was measured: the one thing that silently spoils a speed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil


class CpuTimes(NamedTuple):
    """CPU seconds so far: of all cores together, busy and in all, and those of one's own processes."""

    busy: float
    total: float
    own: float


def read(pids: Iterable[int]) -> CpuTimes:
    """The times now. ``pids``: one's own processes; their descendants count as well, and those that have ended do not."""
    machine = psutil.cpu_times()
    # "guest" is contained in "user", and waiting for a disk is idling.
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    total = sum(machine) - getattr(machine, "guest", 0.0) - getattr(machine, "guest_nice", 0.0)
    family: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            family |= {member.pid: member for member in (process, *process.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return CpuTimes(total - idle, total, sum(map(_seconds, family.values())))


class CpuWatch:
    """From its making on: the share of the machine's CPU that others took. ``pid``: the server's, beside this process."""

    def __init__(self, pid: int, read: Callable[[Iterable[int]], CpuTimes] = read) -> None:
        self._read = read
        self._pids = (os.getpid(), pid)
        self._since = read(self._pids)

    def others(self) -> float:
        """The share, 0 to 1, of all cores together; 0 where no time has passed."""
        now = self._read(self._pids)
        total = now.total - self._since.total
        if total <= 0:
            return 0.0
        share = ((now.busy - self._since.busy) - (now.own - self._since.own)) / total
        return min(max(share, 0.0), 1.0)


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
