"""The hosts of one console. Each is a member with its own session, link, and picture; one of them is in front, and the
screens, the keys and the dialogs are about it.

News of a host that is not in front are handled in its name: whatever the handlers call then (``session``, ``choices``,
``tell`` …) is that member's. A task begun there stays with it, since a task inherits its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from tui.screens.base import ConsoleScreen
from tui.widgets.titlebar import link_words

if TYPE_CHECKING:
    from tui import messages, plan
    from tui.app import ConsoleApp
    from tui.calling import Caller
    from tui.checking import Checking
    from tui.comparing import Compared
    from tui.launching import Launching
    from tui.mending import Mending
    from tui.ports import Connect
    from tui.session import Session
    from tui.state import Console, LinkState

BEHIND_POLLS = 6
"""A host that is not in front is asked this many times less often: many hosts cost little more than one."""


NOT_KEPT = (0.0, -1, "")
LATER = {
    "readiness": "ReadinessScreen", "launch": "LaunchScreen", "run": "RunScreen", "runs": "RunsScreen", "logs": "LogsScreen",
    "notes": "NotesScreen", "compare": "CompareScreen",
}  # fmt: skip
"""Screens imported when they are first opened: the plots alone cost a third of a second. Each host has its own."""


@dataclass(frozen=True)
class Place:
    """A host to open: its name as shown, and how to reach it. ``named``: somebody has just typed it, so that a name that is
    wrong comes back to them."""

    name: str
    connect: Connect
    named: bool = False


@dataclass
class Member:
    """One host: its link, what is known of it, and what the operator asked of it. ``machine_chosen``: the operator chose
    the machine's preset, so a probe no longer does. ``looked_at``: when somebody last looked at this workspace from
    here; None once it is told what happened since. ``waiting``: dialogs that came while another host was in front.

    What is asked of a host is made when it is first needed, with its modules: they bring the whole spec along, a fifth of
    the time to the first picture."""

    name: str
    console: Console
    session: Session
    caller: Caller
    app: ConsoleApp
    named: bool = False
    """Its name was typed by somebody and has not answered yet."""
    machine_chosen: bool = False
    looked_at: float | None = None
    kept: tuple[float, int, str] = NOT_KEPT
    """Of the open run's picture that the catalogue has: as of when, of which version of the rows, in which state."""
    waiting: list[tuple[Screen[Any], Callable[[Any], None] | None]] = field(default_factory=list)

    @cached_property
    def choices(self) -> plan.Choices:
        from tui import plan

        return plan.first_choices(self.app.workspace, self.app.helper_python)

    @cached_property
    def checking(self) -> Checking:
        from tui.checking import Checking

        return Checking(self.app)

    @cached_property
    def launching(self) -> Launching:
        from tui.launching import Launching

        return Launching(self.app)

    @cached_property
    def mending(self) -> Mending:
        from tui.mending import Mending

        return Mending(self.app)

    @cached_property
    def compared(self) -> Compared:
        from tui.comparing import Compared

        return Compared()


_acting: ContextVar[Member | None] = ContextVar("acting", default=None)
"""The member in whose name something is done now; None means the one in front."""


class Fleet:
    """A part of `tui.app.ConsoleApp`: the members, and which of them is meant."""

    members: dict[str, Member]
    front: Member
    clock: Callable[[], float]
    _poll_s: float
    _speed: float
    _dial: Callable[[str], Connect] | None
    _hosts: Callable[[], Sequence[str]]

    if TYPE_CHECKING:  # the app's own, or Textual's
        screen: Screen[Any]

        def action_go(self, name: str) -> None: ...
        def present(self) -> None: ...
        def ask_once(self, screen: Screen[Any], then: Callable[[Any], None] | None = None) -> None: ...

        call_later: Any
        push_screen: Any
        run_worker: Any
        uninstall_screen: Any
        is_screen_installed: Any
        get_screen: Any

        def _enlist(self, place: Place) -> Member: ...
        def _begin(self, member: Member) -> None: ...

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

    def _pace(self) -> None:
        """The host in front is asked at the chosen pace, the others less often."""
        for member in self.members.values():
            pace_s = self._poll_s * (1 if member is self.front else BEHIND_POLLS)
            member.console.poll_s = pace_s
            member.session.pace(pace_s / self._speed)

    def _screen_name(self, name: str) -> str:
        """Every host has screens of its own, which keep what was chosen on them; Overview alone is of all."""
        return f"{name} of {self.here.name}"

    def screen_of(self, name: str) -> Screen[Any] | None:
        """The screen ``name`` of the host that is meant, where it was ever opened."""
        known = self._screen_name(name)
        found: Screen[Any] | None = self.get_screen(known) if self.is_screen_installed(known) else None
        return found

    def bring(self, host: str) -> None:
        """Bring another host to the front: the screens, the keys and the dialogs are about it from now on."""
        member = self.members.get(host)
        if member is None or member is self.front or not isinstance(self.screen, ConsoleScreen):
            return
        self.front.session.unfollow()
        self.front = member
        self._pace()
        if view := member.console.open_run:
            member.session.follow(view.run_id)
        here = self.screen.HERE
        if here != "overview":
            self.action_go("overview")
            self.action_go("runs" if here == "compare" else here)
        self.present()
        waiting, member.waiting = member.waiting, []
        for screen, then in waiting:
            self.push_screen(screen, then)

    def open_host(self, name: str, named: bool = False) -> None:
        """Have one host more, and bring it to the front. ``named``: its name was typed."""
        if name not in self.members and self._dial is not None:
            self._begin(self._enlist(Place(name, self._dial(name), named)))
        self.bring(name)

    def close_host(self, member: Member) -> None:
        """Have one host less; it is not the one in front."""
        del self.members[member.name]
        for known in [name for name in LATER if self.is_screen_installed(f"{name} of {member.name}")]:
            self.uninstall_screen(f"{known} of {member.name}")
        self.run_worker(member.session.close(), exit_on_error=False)
        self.run_worker(member.caller.close(), exit_on_error=False)
        self.present()

    def first_answer(self, link: LinkState) -> None:
        """Where a host that was named here is not reached at all, its name comes back as it was typed, with the reason."""
        member = self.here
        if not member.named or link.status == "connecting":
            return
        member.named = False
        if link.status in ("down", "refused"):
            self.call_later(self._name_again, member, link.reason)

    def _name_again(self, member: Member, problem: str) -> None:
        if isinstance(self.screen, ConsoleScreen) and not self.screen.is_written_in:
            self.bring(member.name)
            self.action_hosts(again=member, problem=problem)

    def action_next_host(self) -> None:
        """The next host of this console."""
        names = list(self.members)
        self.bring(names[(names.index(self.front.name) + 1) % len(names)])

    def action_hosts(self, again: Member | None = None, problem: str = "") -> None:
        """Choose the host in front, or open one more. ``again``: this one was named and not reached, for the reason
        ``problem``; where another is chosen in its place, it goes."""
        from tui.screens.hosts import ChooseHosts, HostChoice

        def chosen(picked: list[str] | None) -> None:
            known = {choice.name for choice in found}
            for name in picked or []:
                self.open_host(name, named=name not in known)
            if again is not None and picked:
                if again.name in picked:
                    again.named = True
                    again.session.reconnect()
                elif again is not self.front:
                    self.close_host(again)

        now = self.clock()
        found = [HostChoice(name, link_words(member.console.link, now)) for name, member in self.members.items()]
        if self._dial is not None:
            found += [HostChoice(name) for name in self._hosts() if name not in self.members]
        typed = again.name if again is not None else ""
        dialog = ChooseHosts(found, self.front.name, typed=self._dial is not None, named=typed, problem=problem)
        self.ask_once(dialog, chosen)
