"""How keys and the size come from the terminal: without Textual's own turn of a tenth of a second, and from nowhere else.

An Esc may be a key or the beginning of another one, so it waits ESCDELAY for the rest (`tui.launchpad.calm`). Textual's
thread looks whether that time is over only ten times a second, so every dialog closed 100 ms late; this one waits as long as
there is something to wait for, and without end where there is nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from codecs import getincrementaldecoder
from time import monotonic

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size

PIECE_BYTES = 4096


class Told(threading.Event):
    """An event that a ``select`` can wait for too: its descriptor is readable while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptor, self._write = os.pipe()

    def set(self) -> None:
        if not self.is_set():
            super().set()
            os.write(self._write, b"!")

    def clear(self) -> None:
        if self.is_set():
            super().clear()
            os.read(self.descriptor, 1)


class PromptDriver(LinuxDriver):
    """Textual's driver of a Unix terminal with another way of waiting for input."""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | Size | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.exit_event: Told = Told()

    def _get_terminal_size(self) -> tuple[int, int]:
        """Columns and rows, as the terminal tells them. Textual asks COLUMNS and LINES first, which are what the window was when
        somebody exported them."""
        with contextlib.suppress(OSError):  # no terminal: a pipe, which has no size
            found = os.get_terminal_size(self.fileno)
            if found.columns and found.lines:
                return found.columns, found.lines
        return super()._get_terminal_size()

    @property
    def terminal_size(self) -> Size:
        return Size(*self._get_terminal_size())

    def run_input_thread(self) -> None:
        """Read keys until told to end or the terminal is gone."""
        parser, decode = XTermParser(self._debug), getincrementaldecoder("utf-8")(errors="replace").decode
        told = self.exit_event.descriptor
        while not self.exit_event.is_set():
            # Not poll: on a Mac it does not know terminals.
            ready, _, _ = select.select([self.fileno, told], [], [], _left_s(parser))
            if self.fileno in ready:
                try:
                    piece = os.read(self.fileno, PIECE_BYTES)
                except BlockingIOError:
                    continue  # another program at this terminal has left it so and was faster
                except OSError:
                    return  # the terminal is gone; who looks for it once a second ends the console
                if not piece:
                    return
                # Half a character is kept until its rest comes; to feed nothing would be the end of all.
                if words := decode(piece):
                    for event in parser.feed(words):
                        self.process_message(event)
            for event in parser.tick():
                self.process_message(event)


def _left_s(parser: XTermParser) -> float | None:
    """Seconds until the sequence under way counts as complete, None where there is none under way."""
    due = parser._timeout_time
    return None if due is None else max(0.0, due - monotonic())
