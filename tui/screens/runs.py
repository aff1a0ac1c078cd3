"""Runs: every run of the workspace, to find one again and open it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from tui.screens.base import ConsoleScreen, bindings_of
from tui.screens.overview import notice, runs_age
from tui.state import Console
from tui.widgets.panel import caption
from tui.widgets.runs_table import RunsTable


class RunsScreen(ConsoleScreen):
    HERE = "runs"
    BINDINGS = bindings_of("runs")

    def body(self) -> ComposeResult:
        yield Static(id="notice")
        table = RunsTable(id="runs")
        table.border_title = "Runs"
        yield table

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(RunsTable).focus()

    def present(self, console: Console, now: float) -> None:
        line = notice(console, now)
        widget = self.query_one("#notice", Static)
        widget.display = bool(line.plain)
        if widget.content != line:
            widget.update(line)
        table = self.query_one(RunsTable)
        table.show(console, now)
        caption(table, subtitle=runs_age(console, now))

    def action_open_run(self) -> None:
        if run_id := self.query_one(RunsTable).current():
            self.console_app.open_run(run_id)

    def on_runs_table_open(self, message: RunsTable.Open) -> None:
        self.console_app.open_run(message.run_id)
