"""Keys from the terminal: whole, in order, and no later than they must be."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.message import Message

from tui.driver import PIECE_BYTES, PromptDriver, Told, _left_s


class Keyboard(PromptDriver):
    """The driver on a terminal of the test's own; ``keys`` are those that it told."""

    def __init__(self, app: App[None], terminal: int) -> None:
        super().__init__(app)
        self.fileno = terminal
        self.keys: list[str] = []

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.Key):
            self.keys.append(message.key)


def until(true: Callable[[], bool], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


async def _made(terminal: int) -> Keyboard:
    return Keyboard(App(), terminal)


@contextmanager
def keyboard() -> Iterator[tuple[Keyboard, int, threading.Thread]]:
    master, terminal = pty.openpty()
    tty.setraw(terminal)
    driver = asyncio.run(_made(terminal))
    thread = threading.Thread(target=driver.run_input_thread, daemon=True)
    thread.start()
    yield driver, master, thread
    driver.exit_event.set()
    thread.join(20.0)
    assert not thread.is_alive(), "it does not hear that it is to end"
    os.close(terminal)


def test_the_size_is_the_terminals_own_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "60")
    with keyboard() as (driver, master, _):
        for columns, rows in ((80, 24), (40, 12)):
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            assert driver.terminal_size == (columns, rows)
        os.close(master)


def test_an_escape_alone_is_told_though_nothing_follows_it() -> None:
    with keyboard() as (driver, master, _):
        os.write(master, b"\x1b")
        assert until(lambda: driver.keys == ["escape"])
        os.write(master, b"a")
        assert until(lambda: driver.keys == ["escape", "a"])
        os.close(master)


def test_a_key_of_many_bytes_and_a_letter_of_many_bytes_may_come_in_pieces() -> None:
    with keyboard() as (driver, master, _):
        for piece in (b"\x1b[", b"A", "é".encode()[:1], "é".encode()[1:], b"\x1b[6~"):
            os.write(master, piece)
        assert until(lambda: len(driver.keys) == 3), driver.keys
        assert [driver.keys[0], driver.keys[2]] == ["up", "pagedown"]
        os.close(master)


def test_a_terminal_that_is_closed_ends_the_reading_without_a_word() -> None:
    with keyboard() as (driver, master, thread):
        os.close(master)
        thread.join(20.0)
        assert not thread.is_alive() and driver.keys == []


def test_keys_that_another_program_at_the_terminal_took_are_not_the_end_of_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    read, empty = os.read, [True]

    def raced(descriptor: int, size: int) -> bytes:
        if size == PIECE_BYTES and empty.pop() if empty else False:
            raise BlockingIOError
        return read(descriptor, size)

    monkeypatch.setattr("tui.driver.os.read", raced)
    with keyboard() as (driver, master, _):
        os.write(master, b"a")
        assert until(lambda: driver.keys == ["a"]) and not empty
        os.close(master)


def test_it_waits_without_end_unless_a_sequence_is_under_way() -> None:
    parser = XTermParser()
    assert _left_s(parser) is None
    assert [event.key for event in parser.feed("x") if isinstance(event, events.Key)] == ["x"]
    assert _left_s(parser) is None
    assert not list(parser.feed("\x1b"))
    left = _left_s(parser)
    assert left is not None and 0 < left <= 0.1
    assert [event.key for event in parser.feed("[A") if isinstance(event, events.Key)] == ["up"]
    assert _left_s(parser) is None


def test_the_word_to_end_can_be_given_again_after_a_suspend() -> None:
    told = Told()
    for _ in range(2):
        told.set()
        told.set()
        assert told.is_set()
        told.clear()
        told.clear()
        assert not told.is_set()


def test_the_console_takes_it_on_a_terminal() -> None:
    from tui.settings import Settings
    from tui.terminal import TerminalApp

    assert TerminalApp(Settings()).get_driver_class() is PromptDriver
