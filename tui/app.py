"""The console: it holds what is known, hands it to the screen in front, and asks the session for what the operator wants.

Nothing here waits for the wire, and the first picture is drawn before anything connects.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import SystemCommand
from textual.message import Message
from textual.screen import Screen

from tui import messages
from tui.alerting import Alert, of_link
from tui.calling import Caller
from tui.catalog import summaries
from tui.exporting import Tables, written_to
from tui.fleet import NOT_KEPT, Member, Place
from tui.formats import count_label, one_line
from tui.keymap import KEYS, key_of
from tui.login import login_questions
from tui.navigation import Navigation
from tui.news import News
from tui.screens.base import ConsoleScreen, bindings_of
from tui.screens.overview import OverviewScreen
from tui.screens.question import Question
from tui.session import Session
from tui.settings import Settings
from tui.state import Console
from tui.taping import Taping
from tui.themes.palette import PALETTES
from tui.tidying import Tidy

if TYPE_CHECKING:
    from tui.catalog import Catalog
    from tui.ports import Connect

DEFAULT_WORKSPACE = "~/eagle3"
CALM_TICK_S = 5.0
"""Seconds between two looks at the clock with reduced motion: ages then change so often."""
FRESH_S = 0.6
"""A picture that news have just made needs no second one within its second, for the ages alone."""
TOAST_S = {"information": 5.0, "warning": 12.0, "error": 30.0}
"""Seconds that a note stays; a click takes it away at once."""


class ConsoleApp(Navigation, News, Taping):
    """``connect`` makes the container; ``clock`` gives Unix seconds. Both are passed in, so that tests can drive them."""

    CSS_PATH = "themes/console.tcss"
    TITLE = "EAGLE-3 console"
    BINDINGS = bindings_of("everywhere")
    COMMAND_PALETTE_BINDING: ClassVar[str] = "ctrl+p"

    def __init__(
        self,
        connect: Connect,
        *,
        host: str,
        workspace: str = "",
        worker_python: str = "",
        actor: str = "",
        others: Sequence[Place] = (),
        named: bool = False,
        dial: Callable[[str], Connect] | None = None,
        hosts: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.time,
        catalog: Catalog | None = None,
        poll_s: float = 5.0,
        run_id: str = "",
        preload: Sequence[Callable[[], object]] = (),
        terminal_is_there: Callable[[], bool] = lambda: True,
        settings: Settings | None = None,
        problem: str = "",
        record_to: Path | None = None,
        replay_of: str = "",
        speed: float = 1.0,
    ) -> None:
        super().__init__(settings or Settings())
        self._problem = problem
        if self.settings.reduced_motion or "TEXTUAL_ANIMATIONS" not in os.environ:
            self.animation_level = "none"
        self.clock = clock
        self.catalog = catalog
        self.first_run = run_id
        self._terminal_is_there = terminal_is_there
        self._presented = 0.0
        self._tidy = Tidy(time.monotonic())
        self._poll_s, self._actor, self._preload = poll_s, actor, preload
        self.workspace, self.helper_python = workspace, worker_python
        self._dial, self._hosts = dial, hosts
        self._record_to, self.replay_of, self._speed = record_to, replay_of, speed
        self._ask = login_questions(self)
        self.members = {}
        self.front = self._enlist(Place(host, connect, named))
        for place in others:
            self._enlist(place)
        self._pace()

    def _enlist(self, place: Place) -> Member:
        """A new member for ``place``, not yet started."""
        name = place.name

        def post(news: Message) -> object:
            self.record(name, news)
            return self.post_message(messages.OfHost(name, news))

        session = Session(
            place.connect, post=post, ask=self._ask, clock=self.clock, poll_s=self._poll_s, actor=self._actor,
            preload=self._preload, workspace=self.workspace or DEFAULT_WORKSPACE,
            read_only=self.settings.read_only or bool(self.replay_of),
        )  # fmt: skip
        if self.replay_of:
            session.read_only_words = f"this is a {self.replay_of}; nothing can be changed in it."
        caller = Caller(
            self.settings.alerts, host=name, clock=self.clock, ring=self.bell, notify=self.desktop_note,
            tell=lambda text: self.tell(text, "warning"),
        )  # fmt: skip
        self.members[name] = member = Member(
            name, Console(name, poll_s=self._poll_s), session, caller, self, place.named,
        )  # fmt: skip
        return member

    # --- life

    def get_default_screen(self) -> Screen[None]:
        return OverviewScreen(id="overview")

    def on_mount(self) -> None:
        if self._problem:
            self.tell(self._problem, "warning")
        self.heed_suspension()
        self.set_interval(CALM_TICK_S if self.settings.reduced_motion else 1.0, self._tick)
        if self._record_to is not None:
            self.begin_recording(self._record_to)
        for member in self.members.values():
            self._begin(member)

    def _begin(self, member: Member) -> None:
        """Once the first picture is drawn: show what is known of a host from before, and connect."""
        self.call_after_refresh(self._start, member)

    def _start(self, member: Member) -> None:
        self.run_worker(self._recall(member))

    async def _recall(self, member: Member) -> None:
        if self.catalog is not None:
            member.looked_at = self.catalog.looked(member.name, member.session.workspace)
            if kept := self.catalog.runs(member.name, member.session.workspace):
                member.console.remember(await asyncio.to_thread(summaries, kept))
            self._tell_catalog_problem()
        if self.first_run and member is self.front:
            self.open_run(self.first_run)
        member.session.start()
        self.present()

    async def on_unmount(self) -> None:
        self.end_recording()
        members = list(self.members.values())
        await asyncio.gather(*(part.close() for member in members for part in (member.session, member.caller)))
        if self.catalog is not None:
            for member in members:
                self.keep_picture(member)
                if member.console.probe.at is not None:
                    self.catalog.look(member.name, member.session.workspace, member.console.probe.at)
            self.catalog.close()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._tidy.key(time.monotonic())
            top = self.screen
            if isinstance(event, events.Key) and isinstance(top, Question) and not event.is_forwarded and not top.takes(event):
                return
        await super().on_event(event)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """With reduced motion no cursor blinks."""
        if self.settings.reduced_motion and hasattr(event.widget, "cursor_blink"):
            event.widget.cursor_blink = False

    def _tick(self) -> None:
        """Once a second: the ages move on. A console whose terminal was closed ends, even where hang-ups are ignored."""
        if not self._terminal_is_there():
            self.exit(return_code=1)
            return
        self.fit_the_terminal()
        if self._tidy.due(time.monotonic()):
            gc.collect()
        for member in self.members.values():
            link = member.console.link
            if link.status == "up":
                member.caller.forget("link")
            with self.acting_for(member):
                self.call_for(of_link(link.status, self.clock() - link.since, member.name, link.reason))
        if time.monotonic() - self._presented > FRESH_S:
            self.present()

    def present(self) -> None:
        """Show what is known on the screen in front, or on the one below a dialog."""
        if not self.is_running:
            return  # the last news may come while the widgets are taken down
        self._presented = time.monotonic()
        with self.acting_for(self.front):
            self._present()

    def _present(self) -> None:
        for screen in reversed(self.screen_stack):
            if (refresh_live := getattr(screen, "refresh_live", None)) is not None:
                refresh_live()  # a dialog that shows something which may still come
            if isinstance(screen, ConsoleScreen):
                screen.refresh_known()
                return

    def _tell_catalog_problem(self) -> None:
        if self.catalog is not None and self.catalog.problem:
            self.tell(self.catalog.problem, "warning")
            self.catalog.problem = ""

    def tell(self, text: str, severity: str = "information") -> None:
        """A note to the operator; remote text is shown as text. One about a host that is not in front names it."""
        if not self.in_front and self.here.name not in text:
            text = f"{self.here.name}: {text}"
        self.say(one_line(text), severity, TOAST_S[severity])

    def call_for(self, alerts: Sequence[Alert]) -> None:
        """Show what is new of ``alerts``, and call the operator."""
        for alert in self.caller.take(alerts):
            self.tell(alert.text, "information" if alert.kind == "finished" else "warning")

    def desktop_note(self, text: str) -> None:
        """As the terminal's, with the host's name where there are several."""
        host = f"{self.here.name}: " if len(self.members) > 1 else ""
        super().desktop_note(host + text)

    # --- keys for everywhere

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Where notes are written the shell's key is the field's own: it takes back what was typed."""
        if action == "suspend_process" and getattr(self.focused, "read_only", True) is False:
            return False
        return super().check_action(action, parameters)

    def action_theme(self) -> None:
        """The next theme, for this session; settings.toml keeps one."""
        names = list(PALETTES)
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]
        self.refresh_css(animate=False)
        self.tell(f"Theme {self.theme}; settings.toml keeps one for good.")

    def action_hold(self) -> None:
        """Stop asking the containers, or go on."""
        held = not self.session.held
        for member in self.members.values():
            member.session.hold(held)
            member.console.held = held
        self.present()

    def action_copy(self) -> None:
        """What is in front, to the clipboard of the terminal (OSC 52)."""
        if isinstance(self.screen, ConsoleScreen) and (text := self.screen.clip()):
            self.copy_to_clipboard(text)
            self.tell(f"Copied {count_label(text.count(chr(10)) + 1)} lines, where the terminal lets it (OSC 52).")
        else:
            self.tell("There is nothing here to copy.", "warning")

    def may_change(self) -> bool:
        """Whether anything may be changed from here; says so where not."""
        if self.replay_of:
            self.tell(f"This is a {self.replay_of}; nothing can be changed in it.", "warning")
            return False
        if self.settings.read_only:
            self.tell("This console is read-only (--read-only, or read_only in settings.toml); nothing was changed.", "warning")
        return not self.settings.read_only

    def action_reconnect(self) -> None:
        if self.replay_of:
            self.tell(f"This is a {self.replay_of}; there is nothing to connect to.", "warning")
            return
        self.session.reconnect()
        self.tell("Connecting again.")

    def action_export(self) -> None:
        """Write the screen to ``eagle3-<screen>-<time>.svg`` in the current folder, and what it shows as CSV or JSON beside."""
        here = self.screen.HERE if isinstance(self.screen, ConsoleScreen) else "dialog"
        path = Path(f"eagle3-{here}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(self.clock()))}.svg")
        tables = self.screen.exports() if isinstance(self.screen, ConsoleScreen) else dict
        self.run_worker(self._export(path, self._pictured(), tables))

    async def _export(self, path: Path, picture: str, tables: Tables) -> None:
        """Write them beside the event loop: the rows of a long run take seconds."""
        try:
            written = await asyncio.to_thread(written_to, path, picture, tables)
        except OSError as error:
            self.tell(f"{path} cannot be written: {error.strerror}; start the console elsewhere.", "error")
        else:
            self.tell(f"Wrote {', '.join(map(str, written))}.")

    def export(self, path: Path) -> None:
        """Write the screen as it is to an SVG file. Raises OSError."""
        written_to(path, self._pictured())

    def _pictured(self) -> str:
        return self.export_screenshot(title=f"{self.TITLE} · {self.console_state.host}")

    def action_leave(self) -> None:
        from tui.screens.confirm import Choice, Confirm

        note = "Runs go on in the container; reopen the console to find them."
        unsaved = any(view.changed for member in self.members.values() for view in member.console.notes.values())
        if unsaved:
            note = "Notes that were written here are NOT saved (7, then Ctrl+s). " + note
        waiting = next((member.console.launching for member in self.members.values() if member.console.launching), "")
        if waiting:
            note = f"The start of {waiting} has not been answered; quitting may give it up. {note}"
        choices = [Choice("leave", "q", "Quit", safe=not unsaved and not waiting), Choice("", "escape", "Stay")]
        self.ask_once(Confirm("Quit", [], choices, note), lambda answer: self.exit() if answer else None)

    async def action_quit(self) -> None:
        self.action_leave()

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """The command palette holds the table of keys, and nothing else."""
        for key in KEYS:
            if key.where in {"everywhere", getattr(screen, "HERE", "")}:
                action = key.action if key.where == "everywhere" else f"screen.{key.action}"
                yield SystemCommand(key.label, key.help, lambda action=action: self.call_later(self.run_action, action))

    # --- runs

    def open_run(self, run_id: str) -> None:
        """Show this run and follow it."""
        if not self.is_running:
            return
        if self.console_state.open_run is None or self.console_state.open_run.run_id != run_id:
            self.keep_picture(self.here)
            self.here.kept = NOT_KEPT
        self.show_kept(self.console_state.watch(run_id))
        if not self.in_front:
            return  # it is shown, and followed, when its host comes to the front
        self.session.follow(run_id)
        if isinstance(self.screen, ConsoleScreen) and not self.screen.is_written_in:
            self.action_go("run")
        else:  # what is asked or written there is not taken away, and its next letters are no keys of the Run screen
            key = key_of("everywhere", "go('run')")
            self.tell(f"{run_id} is open; press {key} to see it.")
        self.present()

    def compare(self, run_ids: Sequence[str]) -> None:
        """Lay these runs side by side."""
        from tui.comparing import Compared

        self.compared = Compared(tuple(run_ids))
        self.session.collect(run_ids)
        self.action_go("compare")

    def choose(self, field: str, value: str) -> None:
        """A field of the Launch form changed."""
        if field == "machine" and value != self.choices.machine:
            self.here.machine_chosen = True
        self.choices = self.choices.with_field(field, value)

    def action_pilot(self) -> None:
        self.launching.pilot()
