"""Runs as a table: state, stage, progress and what is left. Rows keep their place under the cursor across updates."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from rich.text import Text
from textual.binding import Binding
from textual.message import Message
from textual.widgets import DataTable
from textual.widgets.data_table import RowDoesNotExist

from eagle3.core.run_states import LIVE_STATES
from eagle3.core.wording import run_words
from tui.formats import STATE_WORDS, UNKNOWN, age_label, clean_line, count_label, fit_middle, share, short_duration
from tui.state import Console, Known, run_age_s
from tui.themes.palette import ACCENT, MUTED, STATE_COLOURS, TEXT, WARN

if TYPE_CHECKING:
    from eagle3.core.records import RunSummary

WIDTHS = {
    "State": 14, "Run": 26, "Stage": 10, "Done": 5, "Left": 5, "Took": 6,
    "Started": 10, "Target": 14, "Machine": 8, "Try": 3, "Seen": 18,
}  # fmt: skip
"""Columns by importance, with their widths; as many are shown as fit."""
NEEDED = 6


def columns_for(width: int) -> tuple[str, ...]:
    """The columns that fit, each with a column of air on both sides; never fewer than the first six."""
    names: list[str] = []
    for name, columns in WIDTHS.items():
        if len(names) >= NEEDED and sum(WIDTHS[n] + 2 for n in names) + columns + 2 > width:
            break
        names.append(name)
    return tuple(names)


def state_cell(run: RunSummary) -> Text:
    symbol, word = run_words(run)
    held = run.state == "running" and word != STATE_WORDS["running"][1]
    return Text(f"{symbol} {word.split(', ')[-1]}", WARN if held else STATE_COLOURS.get(run.state, MUTED))


def cells(known: Known[RunSummary], now: float, stale: bool) -> dict[str, Text]:
    """The cells of a run by column. A stale row is dim and its state says so in the last column."""
    run = known.value
    live, progress = run.state in LIVE_STATES, run.progress
    # The contract gives progress in the run's own units; a finished run has nothing left to count.
    done, left = "", ""
    if progress is not None and run.state != "finished":
        part = share(progress.done, progress.total)
        done = f"{part:.0%}" if part is not None else count_label(progress.done)
        if live and progress.eta_s is not None:
            left = short_duration(max(0.0, progress.eta_s - (run.now - progress.t) - (now - (known.at or now))))
    if run.state == "finished":
        done = "all"
    started = run.started_at or run.created_at
    style = MUTED if stale else TEXT
    words = {
        "Run": clean_line(run.run_id, 64),
        "Stage": clean_line(progress.stage, 20) if progress and run.state != "finished" else UNKNOWN,
        "Done": done or UNKNOWN,
        "Left": left or UNKNOWN,
        "Took": short_duration(run_age_s(run, known.at, now)),
        "Target": clean_line(run.label.get("target", UNKNOWN), 30),
        "Machine": clean_line(run.label.get("machine", UNKNOWN), 20),
        "Try": str(run.attempt),
        "Started": age_label(run.now - started + now - (known.at or now)) if started is not None else UNKNOWN,
        "Seen": ("stale · " if stale else "") + age_label(known.age(now)),
    }
    return {"State": state_cell(run) if not stale else Text(state_cell(run).plain, MUTED)} | {
        name: Text(word, style if name == "Run" else MUTED) for name, word in words.items()
    }


class RunsTable(DataTable[Text]):
    """Posts ``Open`` for the run under the cursor."""

    BINDINGS = [Binding("enter", "select_cursor", "Open", show=True, key_display="Enter")]  # noqa: RUF012 - Textual's spelling

    class Open(Message):
        def __init__(self, run_id: str) -> None:
            super().__init__()
            self.run_id = run_id

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=1, id=id)
        self._names: tuple[str, ...] = ()
        self._drawn: dict[str, dict[str, str]] = {}
        self._order: list[str] = []

    def _fit(self) -> None:
        names = columns_for(self.content_size.width or 78)
        if names != self._names:
            self.clear(columns=True)
            for name in names:
                self.add_column(name, key=name, width=WIDTHS[name])
            self._names, self._order = names, []

    def show(
        self,
        console: Console,
        now: float,
        rows: Sequence[Known[RunSummary]] | None = None,
        marked: AbstractSet[str] = frozenset(),
    ) -> None:
        """Update the rows in place; rebuild only where runs came, went or changed order. ``rows`` chooses and orders them,
        ``marked`` ones have a mark."""
        under_cursor = self.current()
        self._fit()
        rows = console.runs_by_age() if rows is None else rows
        order = [known.value.run_id for known in rows]
        drawn = {known.value.run_id: cells(known, now, console.stale(known.at, now)) for known in rows}
        for run_id in console.gone.keys() & drawn.keys():
            drawn[run_id]["State"] = Text("– gone", MUTED)
        for run_id in marked & drawn.keys():
            drawn[run_id]["Run"] = Text(f"▪ {drawn[run_id]['Run'].plain}", ACCENT)
        for row in drawn.values():
            row["Run"] = Text(fit_middle(row["Run"].plain, WIDTHS["Run"]), row["Run"].style)
        if order != self._order:
            place = self.cursor_row
            self.clear()
            for run_id in order:
                self.add_row(*(drawn[run_id][name] for name in self._names), key=run_id)
            self._order = order
            if under_cursor in order:
                place = order.index(under_cursor)
            if under_cursor and order:  # where its run is no longer listed, it stays at its place
                self.move_cursor(row=min(place, len(order) - 1), animate=False)
        else:
            for run_id, row in drawn.items():
                for name in self._names:
                    mark = f"{row[name].plain} {row[name].style}"
                    if self._drawn.get(run_id, {}).get(name) != mark:
                        self.update_cell(run_id, name, row[name])
        self._drawn = {
            run_id: {name: f"{cell.plain} {cell.style}" for name, cell in row.items()} for run_id, row in drawn.items()
        }

    def current(self) -> str:
        """The run under the cursor, or nothing."""
        if not self.row_count:
            return ""
        try:
            return str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value or "")
        except RowDoesNotExist:
            return ""

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if event.row_key.value:
            self.post_message(self.Open(event.row_key.value))
