"""A person at a real terminal: looks at what the emulator shows, presses keys, changes the size of the window."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

import pyte

LIMIT_S = 60.0


class Person:
    """Use as a context manager; ``command`` is what runs on the terminal, which it controls."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80, rows: int = 24) -> None:
        self._command, self._environment = list(command), dict(environment)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> Person:
        self._master, slave = pty.openpty()
        self._tell_size()
        self._process = subprocess.Popen(
            self._command, stdin=slave, stdout=slave, stderr=slave, env=self._environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._master)  # a hang-up, for whatever is still there
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _tell_size(self) -> None:
        size = struct.pack("HHHH", self._screen.lines, self._screen.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        self._tell_size()

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def sight(self) -> str:
        return "\n".join(self._screen.display)

    def sees(self, *words: str, gone: Sequence[str] = ()) -> str:
        """Look until all ``words`` are on the screen and none of ``gone``; returns the screen."""
        deadline = time.monotonic() + LIMIT_S
        while not all(word in self.sight for word in words) or any(word in self.sight for word in gone):
            assert time.monotonic() < deadline, f"looked in vain for {words}, without {gone}; the screen was:\n{self.sight}"
            self._read()
        return self.sight

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            self._stream.feed(os.read(self._master, 1 << 16))
