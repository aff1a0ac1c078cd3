"""Runs: every run of the workspace, to find one again, open it, or lay several side by side."""

from __future__ import annotations

from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Static

from tui.comparing import MOST, Choice
from tui.exporting import Tables, tables_of
from tui.screens.base import bindings_of
from tui.screens.overview import notice, runs_age
from tui.screens.runs_list import RunsListScreen
from tui.state import Console
from tui.widgets.panel import caption
from tui.widgets.runs_table import RunsTable


def title(choice: Choice, shown: int, of: int, marked: int) -> str:
    """ "Runs · 3 of 12 with 'failed' · newest · 2 marked": what is shown of the runs, in Textual markup's escape."""
    words = ["Runs"]
    if choice.words:
        words.append(f"{shown} of {of} with '{choice.words}'")
    words.append(choice.sort)
    if marked:
        words.append(f"{marked} marked")
    return " · ".join(words).replace("[", "\\[")


class RunsScreen(RunsListScreen):
    HERE = "runs"
    BINDINGS = bindings_of("runs")
    _choice = Choice()

    def body(self) -> ComposeResult:
        yield Static(id="notice")
        yield self.runs_table()
        with Horizontal(id="filter"):
            yield Static("Filter", id="filter-label", markup=False)
            yield Input(placeholder="words that a run's line must hold", compact=True, id="filter-input")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#filter").display = False

    def present(self, console: Console, now: float) -> None:
        line = notice(console, now)
        widget = self.query_one("#notice", Static)
        widget.display = bool(line.plain)
        if widget.content != line:
            widget.update(line)
        table = self.query_one(RunsTable)
        known = [*console.runs.values(), *console.gone.values()]
        rows = self._choice.of(known)
        table.show(console, now, rows, frozenset(console.marked))
        caption(table, title=title(self._choice, len(rows), len(known), len(console.marked)), subtitle=runs_age(console, now))

    def exports(self) -> Tables:
        """The runs that are shown, as CSV and as JSON."""
        shown = self._choice.of(list(self.console_app.console_state.runs.values()))
        return lambda: tables_of([known.value for known in shown])

    # --- keys

    def action_sort(self) -> None:
        self._choice = self._choice.next_sort()
        self.refresh_known()

    def action_filter(self) -> None:
        self.query_one("#filter").display = True
        self.query_one("#filter-input", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._choice = replace(self._choice, words=event.value.strip())
        self.refresh_known()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(RunsTable).focus()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Out of the field: it goes where it holds nothing, and stays to be seen where it does. With another window of the
        desktop in front it stays as it is."""
        if isinstance(event.widget, Input) and self.app.app_focus:
            self.query_one("#filter").display = bool(self._choice.words)
            self.call_later(self.query_one(RunsTable).focus)

    def action_mark(self) -> None:
        marked, run_id = self.console_app.console_state.marked, self.query_one(RunsTable).current()
        if run_id in marked:
            marked.remove(run_id)
        elif run_id and len(marked) < MOST:
            marked.append(run_id)
        elif run_id:
            self.console_app.tell(f"{MOST} runs are marked already; unmark one with Space.", "warning")
        self.refresh_known()

    def action_compare(self) -> None:
        """The marked runs; with fewer than two marked, the one under the cursor and the open one too."""
        console = self.console_app.console_state
        chosen = [run_id for run_id in console.marked if run_id in console.runs]
        opened = console.open_run.run_id if console.open_run else ""
        for run_id in (self.query_one(RunsTable).current(), opened):
            if len(chosen) < 2 and run_id and run_id not in chosen:
                chosen.append(run_id)
        if len(chosen) < 2:
            self.console_app.tell("Mark two runs or more with Space, then press c.", "warning")
            return
        self.console_app.compare(chosen)
