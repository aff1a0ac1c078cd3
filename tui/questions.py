"""The login's questions on a plain terminal, for the commands without a screen."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
import termios
import threading
from collections.abc import Awaitable, Callable

from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from tui.formats import one_line


def on_terminal() -> Ask:
    """Asks on the terminal where there is one, else nobody. Prompts go to stderr: stdout is the answer's alone."""
    if not sys.stdin.isatty():
        return Ask()
    return Ask(host_key=_host_key, secret=_secret)


async def _host_key(question: HostKeyQuestion) -> bool:
    answer = await _asked(lambda: _line(f"{one_line(question.text)} [yes/no] "))
    return (answer or "").strip().lower() in {"y", "yes"}


async def _secret(question: SecretQuestion) -> str | None:
    prompt = f"{one_line(question.host)}: {one_line(question.prompt)} "
    return await _asked(lambda: _line(prompt) if question.echo else getpass.getpass(prompt))


def secret_value() -> Callable[[str], Awaitable[str | None]] | None:
    """Asks for a run's secret by its name, without echo; None where there is no terminal."""
    if not sys.stdin.isatty():
        return None

    async def ask(name: str) -> str | None:
        return await _asked(lambda: getpass.getpass(f"Value of {one_line(name)} for the run (not shown): "))

    return ask


def _line(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


async def _asked(read: Callable[[], str]) -> str | None:
    """What the person types; None where the terminal ends instead.

    The thread is a daemon and the terminal's settings are put back here: Ctrl-C ends the command while the question
    is open, without waiting for Enter and without leaving the echo off.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def settle(text: str | None) -> None:
        if not answer.done():
            answer.set_result(text)

    def work() -> None:
        text: str | None = None
        with contextlib.suppress(EOFError, OSError):  # a terminal that is gone answers nothing
            text = read()
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, text)

    before = termios.tcgetattr(sys.stdin)
    threading.Thread(target=work, daemon=True).start()
    try:
        return await answer
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
