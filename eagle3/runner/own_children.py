"""Children of a supervisor that are no processes of its run: questions to the GPUs, alerts on their way.

They bear no marker of the run, and the supervisor leaves them and what they start out when it counts or ends the
run's processes.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any, Dict, Iterable, List, Set, Tuple

from eagle3.runner import identity
from eagle3.runner.identity import Stat

_LOCK_WAIT_S = 1.0
_lock = threading.Lock()
_started: Set[Tuple[int, int]] = set()


def unmarked_environment() -> Dict[str, str]:
    """Our environment without what marks the processes of a run."""
    return {key: value for key, value in os.environ.items() if not key.startswith("EAGLE3_")}


def start(command: List[str], **options: Any) -> "subprocess.Popen[bytes]":
    """As ``subprocess.Popen`` for a child that is the supervisor's own. Raises OSError."""
    with _lock:  # whoever has seen the child in the process table finds it here
        child = subprocess.Popen(command, **{"env": unmarked_environment(), **options})
        _started.difference_update([p for p in _started if not identity.is_running(*p)] if len(_started) > 32 else [])
        found = identity.stat(child.pid)
        _started.add((child.pid, found.start_ticks if found else 0))
    return child


def leave_out(processes: Iterable[Stat]) -> List[Stat]:
    """``processes`` (parents before children) without the supervisor's own children and what descends from them."""
    held = _lock.acquire(timeout=_LOCK_WAIT_S)  # a start that hangs (a dead network disk) must not hang the supervisor
    own = set(_started)
    if held:
        _lock.release()
    dropped: Set[int] = set()
    kept = []
    for process in processes:
        if (process.pid, process.start_ticks) in own or process.ppid in dropped:
            dropped.add(process.pid)
        else:
            kept.append(process)
    return kept
