"""On a real pseudo-terminal: the first picture, and what happens when the terminal is closed."""

from __future__ import annotations

import contextlib
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


def test_the_console_ends_with_its_terminal_even_where_hang_ups_are_ignored(tmp_path: Path) -> None:
    # Started through a shell that ignores the hang-up, as nohup and some session managers do.
    console, master = on_terminal('trap "" HUP; exec "$0" -m tui no-such-host.invalid', tmp_path)
    with ended(console):
        drawn = read_until(master, b"Overview")
        assert b"\x1b]52" not in drawn
        os.close(master)
        assert console.wait(timeout=LIMIT_S) is not None


FROZEN = """
import sys, threading
from tui.hangup import end_with_terminal
end_with_terminal(sys.stdin.fileno(), grace_s=0.1)
print("frozen", flush=True)
threading.Event().wait()
"""


def test_a_console_that_waits_for_a_terminal_nobody_reads_ends_with_it_too(tmp_path: Path) -> None:
    console, master = on_terminal('trap "" HUP; exec "$0" -c "$1"', tmp_path, FROZEN)
    with ended(console):
        read_until(master, b"frozen")
        os.close(master)
        assert console.wait(timeout=LIMIT_S) == 1


def test_a_console_told_to_end_gives_the_terminal_back(tmp_path: Path) -> None:
    console, master = on_terminal('exec "$0" -m tui no-such-host.invalid', tmp_path)
    with ended(console):
        read_until(master, b"Overview")
        console.terminate()
        read_until(master, b"\x1b[?1049l")
        assert console.wait(timeout=LIMIT_S) == 128 + signal.SIGTERM
    os.close(master)
