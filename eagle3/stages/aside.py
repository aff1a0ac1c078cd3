"""Work in a thread of its own while a stage waits for something else.

A server loads for half a minute or for half an hour, and nearly all of that on one core; what the worker itself must import and
read for its next step (transformers took 7 s, speculators 4 s, measured on 2 cores) is done in that time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Aside(Generic[Made]):
    """``make()`` begins at once. The interpreter waits for it at its end: modules that are half imported may take it down."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._future: Future[Made] = Future()
        self._make = make
        threading.Thread(target=self._run, name="aside").start()

    def check(self) -> None:
        """Raise what ``make`` has raised so far, so that nobody waits longer for what will be of no use."""
        if self._future.done():
            self._future.result()

    def result(self) -> Made:
        """What was made; waits for it. Raises what ``make`` raises."""
        return self._future.result()

    def _run(self) -> None:
        try:
            self._future.set_result(self._make())
        except BaseException as error:  # noqa: BLE001 - told to whoever asks for the result
            self._future.set_exception(error)


def import_aside(*modules: str) -> None:
    """Import what the next stage needs. A module that cannot be imported is that stage's to tell."""

    def work() -> None:
        for name in modules:
            with contextlib.suppress(Exception):
                import_module(name)

    Aside(work)
