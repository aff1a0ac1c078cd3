"""What the parts of the session share: how they ask the container, and how they say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from textual.message import Message

from tui.formats import one_line

if TYPE_CHECKING:
    from remote.errors import ContainerError, LinkError
    from tui.ports import ContainerPort

RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between one try and the next."""


def sentence(error: LinkError | ContainerError) -> str:
    """An error as one line: what is wrong, and the next step where one is given."""
    remedy = getattr(error, "remedy", "")
    return one_line(f"{error.text} {remedy}" if remedy else error.text)


class SessionPart:
    """Mixed into `tui.session.Session`, which owns the connection and the tasks."""

    _post: Callable[[Message], object]
    _clock: Callable[[], float]
    _wake: asyncio.Event
    """To be set where the next probe should come at once."""

    def _spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` in a task of its own; ``what`` is what it is called, and the same again takes its place."""
        raise NotImplementedError

    def _change(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """As `_spawn`, for what changes something: never done by a console that may only look."""
        raise NotImplementedError

    async def _ready(self) -> ContainerPort:
        """The container, once it has been opened."""
        raise NotImplementedError
