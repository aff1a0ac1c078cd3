"""Runs: every run of the workspace, to find one again and open it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from tui.screens.base import bindings_of
from tui.screens.overview import notice, runs_age
from tui.screens.runs_list import RunsListScreen
from tui.state import Console
from tui.widgets.panel import caption
from tui.widgets.runs_table import RunsTable


class RunsScreen(RunsListScreen):
    HERE = "runs"
    BINDINGS = bindings_of("runs")

    def body(self) -> ComposeResult:
        yield Static(id="notice")
        yield self.runs_table()

    def present(self, console: Console, now: float) -> None:
        line = notice(console, now)
        widget = self.query_one("#notice", Static)
        widget.display = bool(line.plain)
        if widget.content != line:
            widget.update(line)
        table = self.query_one(RunsTable)
        table.show(console, now)
        caption(table, subtitle=runs_age(console, now))
