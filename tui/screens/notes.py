"""Notes: what was learnt, in the run's NOTES.md and in the workspace's. Several people may write; no line is lost, and
what was typed here stays until it is saved."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from tui.formats import age_label, clean_line
from tui.screens.base import ConsoleScreen, bindings_of
from tui.state import Console, NotesView
from tui.widgets.panel import caption

POLL_S = 5.0


class NotesScreen(ConsoleScreen):
    HERE = "notes"
    BINDINGS = bindings_of("notes")
    _of_run = True
    _shown = ""

    def body(self) -> ComposeResult:
        with Vertical(id="notes"):
            yield Static(id="notice", markup=False)
            yield TextArea(read_only=True, soft_wrap=True, show_line_numbers=False, id="text")

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()
        self.set_interval(POLL_S, self._poll)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        self._read()

    @property
    def _run_id(self) -> str:
        """Whose notes: the open run's (or the latest one's), or "" for the workspace's. While somebody writes always the same:
        another run that is opened meanwhile must not get what was meant for this one."""
        if not self.query_one(TextArea).read_only:
            return self._shown
        return self.console_app.console_state.shown_run(self._shown) if self._of_run else ""

    @property
    def _view(self) -> NotesView:
        return self.console_app.console_state.notes.setdefault(self._run_id, NotesView())

    def _read(self) -> None:
        if self.is_current:
            self.console_app.session.read_notes(self._run_id)

    def _poll(self) -> None:
        """Every few seconds what others wrote, unless the container is asked for no news."""
        if not self.console_app.console_state.held or self._view.at is None:
            self._read()

    def present(self, console: Console, now: float) -> None:
        run_id, view, area = self._run_id, self._view, self.query_one(TextArea)
        if run_id != self._shown or (area.text != view.text and area.text == self._loaded):
            self._shown = run_id
            place = area.cursor_location
            area.load_text(view.text)
            area.move_cursor(place)
        self._loaded = view.text
        editing = not area.read_only
        if (notes := self.query_one("#notes")).has_class("editing") != editing:
            notes.set_class(editing, "editing")
            self.refresh_bindings()  # letters are text now, or keys again
        words = "being saved …" if view.saving is not None else "not saved · Ctrl+s saves" if view.changed else ""
        if not words:
            words = "i writes" if not editing else "writing · Esc leaves off"
        area.placeholder = "" if view.at is None else "nothing written yet"
        age = "not read yet" if view.at is None else f"as of {age_label(now - view.at)}"
        host = clean_line(console.host, 60).replace("[", "\\[")  # a border's words are markup
        title = f"Notes of {clean_line(run_id, 64)}" if run_id else f"Notes of the workspace on {host}"
        stale = console.stale(view.at, now, POLL_S) and view.at is not None
        caption(area, title=title, subtitle=f"{words} · {'stale · ' if stale else ''}{age}")
        notice = self.query_one("#notice", Static)
        problem = f"Not saved, and kept here: {view.not_saved}" if view.not_saved else view.problem
        notice.display = bool(problem)
        if notice.content != problem:
            notice.update(problem)

    _loaded = ""

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        if event.text_area.read_only:
            return
        view = self._view
        if event.text_area.text != view.text:
            view.text = self._loaded = event.text_area.text
            self.refresh_known()

    def action_edit(self) -> None:
        if not self.console_app.may_change():
            return  # what were typed could not be saved
        area = self.query_one(TextArea)
        area.read_only = False
        area.move_cursor(area.document.end)  # most notes are added
        area.focus()
        self.refresh_known()

    def action_save(self) -> None:
        view = self._view
        if not view.changed:
            self.console_app.tell("There is nothing to save.")
        elif view.saving is None:
            view.saving = view.text
            self.console_app.session.save_notes(self._run_id, view.base, view.text)
            self.refresh_known()

    def action_other(self) -> None:
        """The run's notes, or the workspace's."""
        self._of_run = not self._of_run
        self.query_one(TextArea).read_only = True
        self._read()
        self.refresh_known()
