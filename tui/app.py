"""The console: it holds what is known, hands it to the screen in front, and asks the session for what the operator wants.

Nothing here waits for the wire, and the first picture is drawn before anything connects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

from textual.app import SystemCommand
from textual.screen import Screen
from textual.widgets import Input, TextArea

from tui import messages, plan
from tui.alerting import Alert, happened_words, of_disks, of_link, of_runs, since_words
from tui.calling import Caller
from tui.catalog import Catalog
from tui.checking import Checking
from tui.comparing import Compared
from tui.formats import age_label, clean_text, count_label, one_line
from tui.keymap import KEYS
from tui.launching import Launching
from tui.login import login_questions
from tui.mending import Mending
from tui.ports import Connect
from tui.readiness_news import ReadinessNews
from tui.screens.base import ConsoleScreen, bindings_of
from tui.screens.confirm import Choice, Confirm
from tui.screens.overview import OverviewScreen
from tui.session import Session
from tui.settings import Settings
from tui.state import Console, NotesView
from tui.terminal import TerminalApp
from tui.themes.palette import PALETTES

LATER = {
    "readiness": "ReadinessScreen", "launch": "LaunchScreen", "run": "RunScreen", "runs": "RunsScreen", "logs": "LogsScreen",
    "notes": "NotesScreen", "compare": "CompareScreen",
}  # fmt: skip
"""Screens imported when they are first opened: the plots alone cost a third of a second."""

FRESH_S = 0.6
"""A picture that news have just made needs no second one within its second, for the ages alone."""
TOAST_S = {"information": 5.0, "warning": 12.0, "error": 30.0}
"""Seconds that a note stays; a click takes it away at once."""


class ConsoleApp(ReadinessNews, TerminalApp):
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
        clock: Callable[[], float] = time.time,
        catalog: Catalog | None = None,
        poll_s: float = 5.0,
        run_id: str = "",
        preload: Callable[[], object] | None = None,
        terminal_is_there: Callable[[], bool] = lambda: True,
        settings: Settings | None = None,
        problem: str = "",
    ) -> None:
        super().__init__(settings or Settings())
        self._problem = problem
        self.animation_level = "none"
        self.clock = clock
        self.console_state = Console(host, poll_s=poll_s)
        self.choices = plan.first_choices(workspace, worker_python)
        self.compared = Compared()
        self._looked_at: float | None = None
        """When somebody last looked at this workspace from here; None once it is told what happened since."""
        self._machine_chosen = False
        self.catalog = catalog
        self.first_run = run_id
        self._terminal_is_there = terminal_is_there
        self._presented = 0.0
        self.caller = Caller(
            self.settings.alerts, host=host, clock=clock, ring=self.bell, notify=self.desktop_note,
            tell=lambda text: self.tell(text, "warning"),
        )  # fmt: skip
        ask = login_questions(self)
        self.session = Session(
            connect,
            post=self.post_message,
            ask=ask,
            clock=clock,
            poll_s=poll_s,
            actor=actor,
            preload=preload,
            workspace=workspace or plan.DEFAULT_WORKSPACE,
            read_only=self.settings.read_only,
        )
        self.checking = Checking(self)
        self.launching = Launching(self)
        self.mending = Mending(self)

    # --- life

    def get_default_screen(self) -> Screen[None]:
        return OverviewScreen(id="overview")

    def on_mount(self) -> None:
        if self.catalog is not None:
            self.console_state.remember(self.catalog.runs(self.console_state.host, self.session.workspace))
            self._looked_at = self.catalog.looked(self.console_state.host, self.session.workspace)
            self._tell_catalog_problem()
        if self._problem:
            self.tell(self._problem, "warning")
        self.heed_suspension()
        self.set_interval(1.0, self._tick)
        self.call_after_refresh(self.session.start)
        if self.first_run:
            self.call_after_refresh(self.open_run, self.first_run)

    async def on_unmount(self) -> None:
        await self.session.close()
        await self.caller.close()
        if self.catalog is not None:
            if self.console_state.probe.at is not None:
                self.catalog.look(self.console_state.host, self.session.workspace, self.console_state.probe.at)
            self.catalog.close()

    def _tick(self) -> None:
        """Once a second: the ages move on. A console whose terminal was closed ends, even where hang-ups are ignored."""
        if not self._terminal_is_there():
            self.exit(return_code=1)
            return
        self.fit_the_terminal()
        link = self.console_state.link
        if link.status == "up":
            self.caller.forget("link")
        self.call_for(of_link(link.status, self.clock() - link.since, self.console_state.host, link.reason))
        if time.monotonic() - self._presented > FRESH_S:
            self.present()

    def present(self) -> None:
        """Show what is known on the screen in front, or on the one below a dialog."""
        if not self.is_running:
            return  # the last news may come while the widgets are taken down
        self._presented = time.monotonic()
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
        """A note to the operator; remote text is shown as text."""
        self.notify(one_line(text), severity=cast(Any, severity), markup=False, timeout=TOAST_S[severity])

    def call_for(self, alerts: Sequence[Alert]) -> None:
        """Show what is new of ``alerts``, and call the operator."""
        for alert in self.caller.take(alerts):
            self.tell(alert.text, "information" if alert.kind == "finished" else "warning")

    # --- news from the session

    def on_link_changed(self, message: messages.LinkChanged) -> None:
        self.console_state.take_link(message.link)
        self.present()

    def on_probe_arrived(self, message: messages.ProbeArrived) -> None:
        before = {run_id: known.value for run_id, known in self.console_state.runs.items()}
        if self._looked_at is not None:
            away = age_label(message.at - self._looked_at)
            self.console_state.since = since_words(before, message.probe.runs, away)
            self.session.ask_since(message.at - self._looked_at, message.probe.now)
            self._looked_at = None
        elif self.console_state.probe.at is not None:
            self.call_for(of_runs(before, message.probe.runs))
        self.call_for(of_disks(message.probe.disks))
        self.console_state.take_probe(message.probe, message.at)
        if not self._machine_chosen:
            self.choices = plan.for_machine(self.choices, message.probe)
        if self.catalog is not None:
            self.catalog.save(self.console_state.host, self.session.workspace, message.probe.runs, message.at)
            self._tell_catalog_problem()
        self.present()

    def on_bare_probe_arrived(self, message: messages.BareProbeArrived) -> None:
        self.console_state.take_bare(message.probe, message.at)
        self.present()

    def on_probe_failed(self, message: messages.ProbeFailed) -> None:
        self.console_state.take_problem(message.text)
        self.present()

    def on_news_arrived(self, message: messages.NewsArrived) -> None:
        self.console_state.take_news(message.run_id, message.news, message.at, message.fresh)
        self.present()

    def on_follow_failed(self, message: messages.FollowFailed) -> None:
        if (view := self.console_state.open_run) and view.run_id == message.run_id:
            view.problem = message.text
            self.present()

    def on_since_arrived(self, message: messages.SinceArrived) -> None:
        if words := happened_words(message.since, age_label(message.away_s)):
            self.console_state.since = words
        self.present()

    def on_rows_arrived(self, message: messages.RowsArrived) -> None:
        if (view := self.console_state.open_run) and view.run_id == message.run_id:
            view.take_rows(message.piece, message.first)
            self.present()

    def on_services_arrived(self, message: messages.ServicesArrived) -> None:
        from tui.screens.servers import ServersScreen

        if isinstance(self.screen, ServersScreen):
            self.screen.show(message.found, message.problem)

    def on_asked(self, message: messages.Asked) -> None:
        self.tell(message.text)

    def on_log_arrived(self, message: messages.LogArrived) -> None:
        self._log_screen(message.run_id, lambda screen: screen.arrived(message))

    def on_log_failed(self, message: messages.LogFailed) -> None:
        self._log_screen(message.run_id, lambda screen: screen.failed(message))

    def _log_screen(self, run_id: str, tell: Callable[[Any], None]) -> None:
        """News of a log, for the Logs screen: where it still reads that run."""
        reading = self.console_state.reading
        if reading is not None and reading.run_id == run_id and self.is_screen_installed("logs"):
            tell(self.get_screen("logs"))

    def on_notes_arrived(self, message: messages.NotesArrived) -> None:
        view = self.console_state.notes.setdefault(message.run_id, NotesView())
        view.take(clean_text(message.notes.text), message.at, message.saved, message.notes.conflicts)
        if message.saved:
            also = " together with what others wrote meanwhile" if message.notes.merged else ""
            self.tell(f"The notes were saved{also}.")
        if message.notes.conflicts:
            self.tell("Others had changed the same lines; both versions stand in the notes.", "warning")
        self.present()

    def on_notes_failed(self, message: messages.NotesFailed) -> None:
        view = self.console_state.notes.setdefault(message.run_id, NotesView())
        if message.saving:
            view.saving, view.not_saved = None, message.text
            self.tell("The notes were not saved, and are kept here.", "error")
        else:
            view.problem = message.text
        self.present()

    def on_run_collected(self, message: messages.RunCollected) -> None:
        self.compared.take(message.run_id, message.view, message.spec_toml, message.problem)
        self.present()

    def compare(self, run_ids: Sequence[str]) -> None:
        """Lay these runs side by side."""
        self.compared = Compared(tuple(run_ids))
        self.session.collect(run_ids)
        self.action_go("compare")

    def on_launched(self, message: messages.Launched) -> None:
        self.console_state.launching = ""
        self.clear_notifications()  # what stood in the way is over, and would cover the run
        if message.ack.get("already"):
            self.tell(f"{message.run_id} had been {'resumed' if message.resumed else 'launched'} already.")
        self.open_run(message.run_id)

    def on_stopping(self, message: messages.Stopping) -> None:
        when = "now" if message.mode == "now" else "after its next checkpoint"
        self.tell(f"{message.run_id} stops {when}.")

    def on_ask_again(self, message: messages.AskAgain) -> None:
        self.tell(f"{message.what}: {message.text} It is asked again under the same name.", "warning")

    def on_ask_failed(self, message: messages.AskFailed) -> None:
        self.console_state.launching = ""
        self.tell(f"{message.what}: {message.text}", "error")
        self.present()

    # --- going about

    def action_go(self, name: str) -> None:
        """Bring a screen to the front, importing it the first time."""
        if not isinstance(self.screen, ConsoleScreen) or name == self.screen.HERE:
            return
        if name == "run" and self.console_state.open_run is None and (latest := self.console_state.latest_run()):
            self.open_run(latest)
            return
        if name == "overview":
            while len(self.screen_stack) > 1:
                self.pop_screen()
            return
        if not self.is_screen_installed(name):
            screen_class = getattr(import_module(f"tui.screens.{name}"), LATER[name])
            self.install_screen(screen_class(), name)
        if len(self.screen_stack) > 1:
            self.switch_screen(name)
        else:
            self.push_screen(name)

    def action_step_back(self) -> None:
        """Out of a field that takes every key as text, or of what a screen has opened; from anywhere else to Overview."""
        if isinstance(self.focused, Input):
            self.screen.set_focus(None)
        elif isinstance(self.focused, TextArea) and not self.focused.read_only:
            self.focused.read_only = True
            self.present()
        elif isinstance(self.screen, ConsoleScreen) and self.screen.HERE == "compare":
            self.action_go("runs")
        elif not (isinstance(self.screen, ConsoleScreen) and self.screen.step_back()):
            self.console_state.since = ""
            self.action_go("overview")
            self.present()

    def action_theme(self) -> None:
        """The next theme, for this session; settings.toml keeps one."""
        names = list(PALETTES)
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]
        self.refresh_css(animate=False)
        self.tell(f"Theme {self.theme}; settings.toml keeps one for good.")

    def action_hold(self) -> None:
        """Stop asking the container, or go on."""
        self.session.hold(not self.session.held)
        self.console_state.held = self.session.held
        self.present()

    def action_copy(self) -> None:
        """What is in front, to the clipboard of the terminal (OSC 52)."""
        if isinstance(self.screen, ConsoleScreen) and (text := self.screen.clip()):
            self.copy_to_clipboard(text)
            self.tell(f"Copied {count_label(text.count(chr(10)) + 1)} lines, where the terminal lets it (OSC 52).")

    def may_change(self) -> bool:
        """Whether anything may be changed from here; says so where not."""
        if self.settings.read_only:
            self.tell("This console is read-only (--read-only, or read_only in settings.toml); nothing was changed.", "warning")
        return not self.settings.read_only

    def open_run(self, run_id: str) -> None:
        """Show this run and follow it."""
        if not self.is_running:
            return
        self.console_state.watch(run_id)
        self.session.follow(run_id)
        while len(self.screen_stack) > 1 and not isinstance(self.screen, ConsoleScreen):
            self.pop_screen()
        self.action_go("run")
        self.present()

    def action_help(self) -> None:
        from tui.screens.help import HelpScreen

        self.ask_once(HelpScreen(str(getattr(self.screen, "HERE", ""))))

    def show_details(self) -> None:
        from tui.screens.details import DetailsScreen

        if view := self.console_state.open_run:
            self.session.read_report(view.run_id)
            self.ask_once(DetailsScreen(view))

    def ask_once(self, screen: Screen[Any], then: Callable[[Any], None] | None = None) -> None:
        """Open a dialog, unless one is open."""
        if isinstance(self.screen, ConsoleScreen):
            self.push_screen(screen, then)

    def ask_over(self, screen: Screen[Any], then: Callable[[Any], None]) -> None:
        """Open a dialog that must be answered, over whatever is open."""
        self.push_screen(screen, then)

    def action_reconnect(self) -> None:
        self.session.reconnect()
        self.tell("Connecting again.")

    def action_export(self) -> None:
        """Write the screen to ``eagle3-<screen>-<time>.svg`` in the current folder, and what it shows as CSV or JSON beside."""
        here = self.screen.HERE if isinstance(self.screen, ConsoleScreen) else "dialog"
        path = Path.cwd() / f"eagle3-{here}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(self.clock()))}.svg"
        more = self.screen.exports() if isinstance(self.screen, ConsoleScreen) else {}
        try:
            self.export(path)
            for suffix, text in more.items():
                path.with_suffix(f".{suffix}").write_text(text, encoding="utf-8")
        except OSError as error:
            self.tell(f"{path} cannot be written: {error.strerror}; start the console elsewhere.", "error")
        else:
            self.tell(f"Wrote {path}{''.join(f', .{suffix}' for suffix in more)}.")

    def export(self, path: Path) -> None:
        """Write the screen as it is to an SVG file. Raises OSError."""
        path.write_text(self.export_screenshot(title=f"{self.TITLE} · {self.console_state.host}"), encoding="utf-8")

    def action_leave(self) -> None:
        note = "Runs go on in the container; reopen the console to find them."
        if any(view.changed for view in self.console_state.notes.values()):
            note = "Notes that were written here are NOT saved (7, then Ctrl+s). " + note
        choices = [Choice("leave", "q", "Quit", default=True), Choice("", "escape", "Stay")]
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

    def choose(self, field: str, value: str) -> None:
        """A field of the Launch form changed."""
        if field == "machine" and value != self.choices.machine:
            self._machine_chosen = True
        self.choices = replace(self.choices, **{field: value})

    def action_pilot(self) -> None:
        self.launching.pilot()

    def form_in_front(self) -> bool:
        return isinstance(self.screen, ConsoleScreen) and self.screen.HERE == "launch"
