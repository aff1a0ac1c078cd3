"""The hosts of one console. Each is a member with its own session, link, and picture; one of them is in front, and the
screens, the keys and the dialogs are about it.

News of a host that is not in front are handled in its name: whatever the handlers call then (``session``, ``choices``,
``tell`` …) is that member's. A task begun there stays with it, since a task inherits its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from textual.screen import Screen

from tui import messages, plan
from tui.calling import Caller
from tui.checking import Checking
from tui.comparing import Compared
from tui.launching import Launching
from tui.mending import Mending
from tui.ports import Connect
from tui.session import Session
from tui.state import Console

BEHIND_POLLS = 6
"""A host that is not in front is asked this many times less often: many hosts cost little more than one."""


@dataclass(frozen=True)
class Place:
    """A host to open: its name as shown, and how to reach it."""

    name: str
    connect: Connect


@dataclass
class Member:
    """One host: its link, what is known of it, and what the operator asked of it. ``machine_chosen``: the operator chose
    the machine's preset, so a probe no longer does. ``looked_at``: when somebody last looked at this workspace from
    here; None once it is told what happened since. ``waiting``: dialogs that came while another host was in front."""

    name: str
    console: Console
    session: Session
    caller: Caller
    choices: plan.Choices
    checking: Checking
    launching: Launching
    mending: Mending
    compared: Compared = field(default_factory=Compared)
    machine_chosen: bool = False
    looked_at: float | None = None
    waiting: list[tuple[Screen[Any], Callable[[Any], None] | None]] = field(default_factory=list)


_acting: ContextVar[Member | None] = ContextVar("acting", default=None)
"""The member in whose name something is done now; None means the one in front."""


class Fleet:
    """A part of `tui.app.ConsoleApp`: the members, and which of them is meant."""

    members: dict[str, Member]
    front: Member

    @property
    def here(self) -> Member:
        """The member that is meant: the one whose news are being handled, else the one in front."""
        return _acting.get() or self.front

    @property
    def in_front(self) -> bool:
        """Whether what is done now is about the host that the operator looks at."""
        return self.here is self.front

    @contextmanager
    def acting_for(self, member: Member) -> Iterator[None]:
        """What is done within is done in the name of ``member``."""
        token = _acting.set(None if member is self.front else member)
        try:
            yield
        finally:
            _acting.reset(token)

    @property
    def console_state(self) -> Console:
        return self.here.console

    @property
    def session(self) -> Session:
        return self.here.session

    @property
    def caller(self) -> Caller:
        return self.here.caller

    @property
    def choices(self) -> plan.Choices:
        return self.here.choices

    @choices.setter
    def choices(self, choices: plan.Choices) -> None:
        self.here.choices = choices

    @property
    def compared(self) -> Compared:
        return self.here.compared

    @compared.setter
    def compared(self, compared: Compared) -> None:
        self.here.compared = compared

    @property
    def checking(self) -> Checking:
        return self.here.checking

    @property
    def launching(self) -> Launching:
        return self.here.launching

    @property
    def mending(self) -> Mending:
        return self.here.mending

    def on_of_host(self, message: messages.OfHost) -> None:
        """News of one host, handled in its name."""
        if member := self.members.get(message.host):
            with self.acting_for(member):
                getattr(self, message.news.handler_name)(message.news)
