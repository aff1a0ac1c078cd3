"""Ending a server with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

import psutil

_TERM_GRACE_S = 10.0
_KILL_WAIT_S = 10.0


def end_tree(process: subprocess.Popen[bytes]) -> list[int]:
    """End a process, its group and its descendants: TERM, a bounded wait, KILL. The pids of those that survive even that."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    _signal_group(process.pid, kill=False)
    deadline = time.monotonic() + _TERM_GRACE_S
    while time.monotonic() < deadline:
        process.poll()
        if process.returncode is not None and not _alive(family) and not _group_alive(process.pid):
            return []
        time.sleep(0.05)
    _signal_group(process.pid, kill=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
    psutil.wait_procs(family, timeout=_KILL_WAIT_S)
    return [process.pid] * (process.poll() is None) + [member.pid for member in _alive(family)]


def _signal_group(group: int, *, kill: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL if kill else signal.SIGTERM)


def _group_alive(group: int) -> bool:
    """True while a process of the group is more than a zombie that someone else has to reap."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living
