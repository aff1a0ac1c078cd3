"""On a real pseudo-terminal: the first picture, and what happens when the terminal is closed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.tui.support.terminal import LIMIT_S, ended, on_terminal, read_until


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
