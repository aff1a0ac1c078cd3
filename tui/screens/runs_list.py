"""What the screens with a list of runs share: the list has the keys, and a run in it can be opened."""

from __future__ import annotations

from tui.screens.base import ConsoleScreen
from tui.widgets.runs_table import RunsTable


class RunsListScreen(ConsoleScreen):
    """A screen whose ``body`` holds `runs_table`."""

    def runs_table(self) -> RunsTable:
        table = RunsTable(id="runs")
        table.border_title = "Runs"
        return table

    def on_mount(self) -> None:
        self.query_one(RunsTable).focus()

    def action_open_run(self) -> None:
        if run_id := self.query_one(RunsTable).current():
            self.console_app.open_run(run_id)

    def on_runs_table_open(self, message: RunsTable.Open) -> None:
        self.console_app.open_run(message.run_id)
