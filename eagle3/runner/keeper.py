"""A keeper beside a command that starts servers and has no supervisor: it ends them when the command is gone, by SIGKILL too.

The command holds one end of a pipe and the keeper waits at the other: the kernel closes the first at any death. What the
command has started bears its marker, so nothing else is touched. The keeper is of no session and bears no marker itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Iterator, List

from eagle3.runner import detach, proctable

MARKER = "EAGLE3_KEPT_BY"
GRACE_S = 5.0
"""Between TERM and KILL: whoever needed longer to put something down is gone."""
SETTLE_S = 1.0
"""Until the second look: a process that was just being started bears the marker only then."""


@contextlib.contextmanager
def keeping(log: Path) -> Iterator[None]:
    """What this process starts in the block is ended when it dies, and at the latest behind the block. ``log``: where the
    keeper says what it has ended. Raises OSError where no keeper can be started."""
    mark = f"{os.getpid()}:{os.urandom(6).hex()}"
    read_end, write_end = os.pipe()
    try:
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                arguments = ["keep", mark, "--fd", str(read_end)]
                env = detach.child_environment({})
                detach.spawn(arguments, log=out, cwd=log.parent, env=env, pass_fds=(read_end,))
            finally:
                os.close(out)
        finally:
            os.close(read_end)
        os.environ[MARKER] = mark
        yield
    finally:
        os.environ.pop(MARKER, None)
        os.close(write_end)


def keep(mark: str, descriptor: int) -> int:
    """The keeper itself: wait until the other end of the pipe is closed, then end who bears ``mark``. 1: something survived."""

    def left() -> List[proctable.Process]:
        return [(p.pid, p.start_ticks) for p in proctable.bearing({MARKER: mark})]

    while os.read(descriptor, 64):
        pass
    survivors: List[proctable.Process] = []
    for look in range(2):
        time.sleep(SETTLE_S * look)
        for pid, _ in left():
            _tell(f"The command {mark.partition(':')[0]} is gone; ending what it left: {pid} {proctable.name(pid)}")
        survivors = proctable.end_all(left, grace_s=GRACE_S)
    for pid, _ in survivors:
        _tell(f"{pid} {proctable.name(pid)} does not end, not even by KILL; a driver may hang.")
    return 1 if survivors else 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
