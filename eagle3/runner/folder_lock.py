"""One writer at a time for a file that is read, changed and put back: the lock is a folder, which works on network disks too."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Callable, Iterator

from eagle3.runner import rundir
from eagle3.runner.errors import VerbError, from_os_error

WAIT_S = 10.0
_POLL_S = 0.02
STALE_S = 30.0
"""A lock older than this belongs to a writer that died: a write takes milliseconds."""


@contextlib.contextmanager
def locked(
    folder: Path,
    name: str,
    *,
    wait_s: float = WAIT_S,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the file ``name`` of ``folder`` for one write. A lock that a dead writer left is taken over by whoever renames it
    away first. Raises VerbError: "busy" after ``wait_s`` seconds, disk and permission where none can be made."""
    lock = folder / f".{name}.lock"
    waited_s = 0.0  # counted, not read from the clock: that may be set meanwhile
    while True:
        try:
            if rundir.claim(lock):
                break
            age_s = clock() - lock.stat().st_mtime
        except FileNotFoundError as error:
            if not folder.is_dir():
                raise from_os_error(error, f"writing {folder / name}") from error
            continue  # let go of between the two questions
        except OSError as error:
            raise from_os_error(error, f"writing {folder / name}") from error
        if age_s > STALE_S:
            aside = folder / f".{name}.stale-{os.urandom(6).hex()}"
            with contextlib.suppress(OSError):  # another one took it over first
                lock.rename(aside)
                aside.rmdir()
        elif waited_s > wait_s:
            raise VerbError("busy", f"{folder / name} is being written by somebody else.", "Ask again in a moment.")
        else:
            pause(_POLL_S)
            waited_s += _POLL_S
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # taken over as stale: the new holder's to remove
            lock.rmdir()
