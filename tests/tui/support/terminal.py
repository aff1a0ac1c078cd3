"""The console on a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 60.0


def read_until(master: int, wanted: bytes) -> bytes:
    """What the console draws, until ``wanted`` is in it."""
    drawn, deadline = b"", time.monotonic() + LIMIT_S
    while wanted not in drawn:
        assert time.monotonic() < deadline, f"never drawn: {wanted!r}"
        if select.select([master], [], [], 0.2)[0]:
            drawn += os.read(master, 65536)
    return drawn


def on_terminal(command: str, home: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """A shell's ``command``, which finds this interpreter as $0, on a terminal of its own; and that terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        ["/bin/sh", "-c", command, sys.executable, *words],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    return process, master


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
