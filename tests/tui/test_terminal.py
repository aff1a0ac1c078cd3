"""On a real pseudo-terminal: the first picture, and what happens when the terminal is closed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
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


def test_the_console_ends_with_its_terminal_even_where_hang_ups_are_ignored(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm-256color"}
    # Started through a shell that ignores the hang-up, as nohup and some session managers do.
    command = 'trap "" HUP; exec "$0" -m tui no-such-host.invalid'
    console = subprocess.Popen(
        ["/bin/sh", "-c", command, sys.executable],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    try:
        drawn = read_until(master, b"Overview")
        assert b"\x1b]52" not in drawn
        os.close(master)
        assert console.wait(timeout=LIMIT_S) is not None
    finally:
        if console.poll() is None:
            console.send_signal(signal.SIGKILL)
            console.wait()
