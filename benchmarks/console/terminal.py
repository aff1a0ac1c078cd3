"""A pseudo-terminal with a program on it, read by a thread of its own so that reading never waits for what is measured."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

LIMIT_S = 120.0
MB = 1e6
PIECE_BYTES = 1 << 16


class Terminal:
    """Use as a context manager; at its end the program gets TERM, then KILL. ``bytes`` counts what was drawn; ``hold``
    stops reading."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 120,
        rows: int = 40,
        cwd: Path | None = None,
    ) -> None:
        self._command, self._environment, self._cwd = list(command), dict(environment), cwd
        self._size = (columns, rows)
        self.bytes = 0
        self._drawn = bytearray()
        self._changed = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()
        self._over = False

    def __enter__(self) -> Terminal:
        self.master, slave = pty.openpty()
        self.resize(*self._size)
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            self._command, stdin=slave, stdout=slave, stderr=slave, env=self._environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reading.set()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            # LEET leaves a child that takes a tenth of a core for good, beside everything that is measured after it.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close the terminal, as a window does: what runs on it gets a hang-up."""
        if not self._over:
            self._over = True
            self._reader.join(2.0)
            os.close(self.master)

    def _read(self) -> None:
        while not self._over:
            self._reading.wait(0.2)
            if not self._reading.is_set() or not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(self.master, PIECE_BYTES)
            except OSError:
                return  # the program has let go of the terminal
            with self._changed:
                self.bytes += len(piece)
                self._drawn += piece
                self._changed.notify_all()

    def hold(self, held: bool) -> None:
        """Stop reading what the program draws, or go on."""
        (self._reading.clear if held else self._reading.set)()

    def resize(self, columns: int, rows: int) -> None:
        """Another size; whoever draws here is told by a signal of the kernel's."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def signal(self, number: signal.Signals) -> None:
        """To all that run on this terminal."""
        os.killpg(self.process.pid, number)

    def forget(self) -> None:
        """What was drawn until now is no longer looked at."""
        with self._changed:
            self._drawn.clear()

    def drawn(self, words: bytes) -> bool:
        """Whether this was drawn since ``forget``."""
        with self._changed:
            return words in self._drawn

    def stopped(self) -> bool:
        """Whether the program is suspended."""
        return str(psutil.Process(self.process.pid).status()) == "stopped"

    def until(self, *wanted: bytes, limit_s: float = LIMIT_S) -> float:
        """Wait until one of these has been drawn since ``forget``; returns when that was, by ``time.perf_counter``.
        Raises RuntimeError with the last of what was drawn."""
        deadline = time.perf_counter() + limit_s
        with self._changed:
            while not any(words in self._drawn for words in wanted):
                left = deadline - time.perf_counter()
                if left <= 0 or self.process.poll() is not None:
                    raise RuntimeError(f"never drawn: {wanted!r}; the last was {bytes(self._drawn[-3000:])!r}")
                self._changed.wait(min(left, 0.5))
            return time.perf_counter()

    def pressed(self, keys: bytes, *wanted: bytes, limit_s: float = LIMIT_S) -> float:
        """Seconds from a key until one of these words is drawn. Raises RuntimeError where that takes too long."""
        self.forget()
        begun = time.perf_counter()
        self.send(keys)
        return self.until(*wanted, limit_s=limit_s) - begun

    def cpu_s(self) -> float:
        """Processor seconds of the program and its children so far, user and system, all their threads."""
        total = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.Error):  # it has just ended
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_mb(self) -> float:
        """Resident memory of the program and its children."""
        total = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.Error):  # it has just ended
                total += process.memory_info().rss / MB
        return total

    def _family(self) -> list[psutil.Process]:
        program = psutil.Process(self.process.pid)
        return [program, *program.children(recursive=True)]

    def watched(self, duration_s: float, *, every_s: float = 0.5) -> tuple[float, float]:
        """Leave it alone for ``duration_s``: the share of a core that it took, and kilobytes a second to the terminal."""
        cpu, drawn, begun = self.cpu_s(), self.bytes, time.perf_counter()
        while time.perf_counter() - begun < duration_s:
            self.forget()  # what nobody looks for is not kept
            time.sleep(every_s)
        took = time.perf_counter() - begun
        return (self.cpu_s() - cpu) / took, (self.bytes - drawn) / took / 1000
