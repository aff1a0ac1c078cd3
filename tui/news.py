"""The app's ears for news of a host: each message to what is known of it, then to the screen in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from tui.alerting import Alert, happened_words, of_disks, of_runs, over_disks, over_runs, since_words
from tui.formats import age_label, clean_text
from tui.readiness_news import ReadinessNews
from tui.state import NotesView, RunView

if TYPE_CHECKING:
    from eagle3.core.records import RunSummary
    from tui import messages
    from tui.catalog import Catalog
    from tui.fleet import Member

LAUNCHES = ("Launching", "Resuming")
"""How the session calls what starts a run."""
KEEP_S = 60.0
"""The picture of a run that goes on is kept so often."""


class News(ReadinessNews):
    """A part of `tui.app.ConsoleApp`."""

    catalog: Catalog | None
    screen: Screen[Any]

    def call_for(self, alerts: Sequence[Alert]) -> None:
        raise NotImplementedError

    def open_run(self, run_id: str) -> None:
        raise NotImplementedError

    if TYPE_CHECKING:  # Textual's own

        @property
        def screen_stack(self) -> list[Screen[Any]]: ...

        def clear_notifications(self) -> None: ...

    def on_link_changed(self, message: messages.LinkChanged) -> None:
        self.console_state.take_link(message.link)
        self.present()
        self.first_answer(message.link)

    def on_probe_arrived(self, message: messages.ProbeArrived) -> None:
        self.console_state.enter(self.session.workspace)
        before = {run_id: known.value for run_id, known in self.console_state.runs.items()}
        if self.here.looked_at is not None:
            away = age_label(message.at - self.here.looked_at)
            self.console_state.since = since_words(before, message.probe.runs, away)
            self.session.ask_since(message.at - self.here.looked_at, message.probe.now)
            self.here.looked_at = None
        else:
            self._runs_told(before, message.probe.runs)
        self.caller.forget(*over_disks(message.probe.disks))
        self.call_for(of_disks(message.probe.disks))
        self.console_state.take_probe(message.probe, message.at)
        if not self.here.machine_chosen:
            from tui import plan  # loaded by now, where there was somebody to preload it

            self.choices = plan.for_machine(self.choices, message.probe)
        if self.catalog is not None:
            self.catalog.save(self.console_state.host, self.session.workspace, message.probe.runs, message.at)
            self._tell_catalog_problem()
        self.present()

    def _runs_told(self, before: Mapping[str, RunSummary], now: Sequence[RunSummary]) -> None:
        """Call for what became of runs. What was known from an earlier console is compared by `since_words`, not here."""
        if self.console_state.probe.at is not None:
            self.caller.forget(*over_runs(before, now))
            self.call_for(of_runs(before, now))

    def on_bare_probe_arrived(self, message: messages.BareProbeArrived) -> None:
        self.console_state.take_bare(message.probe, message.at)
        self.present()

    def on_probe_failed(self, message: messages.ProbeFailed) -> None:
        self.console_state.take_problem(message.text)
        self.present()

    def on_news_arrived(self, message: messages.NewsArrived) -> None:
        before = {run_id: known.value for run_id, known in self.console_state.runs.items() if run_id == message.run_id}
        self._runs_told(before, [message.news.summary])
        self.console_state.take_news(message.run_id, message.news, message.at, message.fresh)
        self.keep_picture(self.here, KEEP_S)
        self.present()

    def keep_picture(self, member: Member, least_s: float = 0.0) -> None:
        """Have the catalogue keep the open run's picture, where it has changed since it was kept, ``least_s`` ago or more."""
        view = member.console.open_run
        if self.catalog is None or view is None or not view.heard or view.at is None:
            return
        if view.metrics.version == member.kept[1] and view.state == member.kept[2]:
            return
        ended_now = view.ended and view.state != member.kept[2]
        if view.at - member.kept[0] < least_s and not ended_now:
            return
        from tui.keeping import MOST_ROWS, pack  # with pydantic: not before the first picture

        member.kept = (view.at, view.metrics.version, view.state)
        where = (member.name, member.session.workspace, view.run_id)
        rows, events, at = view.metrics.sampled(MOST_ROWS), list(view.events), view.at
        if least_s:
            # A long run takes a moment to thin; the screen goes on meanwhile.
            member.session.aside(
                "Keeping the picture", lambda: pack(rows, events, view.result), lambda p: self._keep(where, p, at)
            )
        else:
            self._keep(where, pack(rows, events, view.result), at)

    def _keep(self, where: tuple[str, str, str], picture: bytes, at: float) -> None:
        if self.catalog is not None:
            self.catalog.save_picture(*where, picture, at)
            self._tell_catalog_problem()

    def show_kept(self, view: RunView) -> None:
        """What the catalogue has of a run that has just been opened, until the container tells it."""
        if self.catalog is None or view.heard or view.kept_at is not None:
            return
        found = self.catalog.picture(self.console_state.host, self.session.workspace, view.run_id)
        if found is None:
            return
        from tui.keeping import unpack  # with pydantic: not before the first picture

        if (kept := unpack(found[0])) is not None:
            view.take_kept(kept, found[1])

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

        for screen in self.screen_stack if self.in_front else ():  # a question may have come over it
            if isinstance(screen, ServersScreen):
                screen.show(message.found, message.problem)

    def on_forkable_arrived(self, message: messages.ForkableArrived) -> None:
        from tui.screens.fork import ForkScreen

        for screen in self.screen_stack if self.in_front else ():  # a question may have come over it
            if isinstance(screen, ForkScreen) and screen.run_id == message.run_id:
                screen.show(message.found, message.problem)

    def on_asked(self, message: messages.Asked) -> None:
        self.tell(message.text)

    def on_note_added(self, message: messages.NoteAdded) -> None:
        """The dialog that it was written in hears of it; where that was left, the operator does, with what was written."""
        for screen in self.screen_stack:
            if (answered := getattr(screen, "note_answered", None)) is not None and answered(message.line, message.problem):
                break
        else:
            if message.problem:
                self.tell(f"The note was not added: {message.problem} It was: {message.line}", "error")
        if not message.problem:
            self.tell("The note is in NOTES.md.")

    def on_log_arrived(self, message: messages.LogArrived) -> None:
        self._log_screen(message.run_id, lambda screen: screen.arrived(message))

    def on_log_failed(self, message: messages.LogFailed) -> None:
        self._log_screen(message.run_id, lambda screen: screen.failed(message))

    def _log_screen(self, run_id: str, tell: Callable[[Any], None]) -> None:
        """News of a log, for the Logs screen of its host: where it still reads that run."""
        reading, screen = self.console_state.reading, self.screen_of("logs")
        if reading is not None and reading.run_id == run_id and screen is not None:
            tell(screen)

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

    def on_launched(self, message: messages.Launched) -> None:
        self.console_state.launching = ""
        if self.in_front:
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
        if message.what.startswith(LAUNCHES):
            # Only then: what else failed meanwhile must not let a second launch begin beside the one under way.
            self.console_state.launching = ""
        self.tell(f"{message.what}: {message.text}", "error")
        self.present()
