"""Compare: up to six runs in one plot, then their figures and what differs between their specs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tui.comparing import Compared
from tui.formats import age_label, clean_line, told_apart
from tui.plotting.figures import FIGURES
from tui.screens.base import bindings_of
from tui.screens.looking import PlotScreen
from tui.state import Console
from tui.themes.palette import BAD, MUTED, TEXT
from tui.widgets.panel import caption
from tui.widgets.plot import MetricPlot

NOTHING = "No runs are compared.  Press 5, mark runs with Space, and press c."


def legend(compared: Compared, now: float) -> Text:
    """The runs in their colours, what is missing of one, and of one that goes on as of when it is shown: it is read once."""
    text = Text()
    for run_id in compared.run_ids:
        text.append("━ ", compared.colour(run_id))
        text.append(clean_line(run_id, 64), TEXT)
        if run_id in compared.problems:
            text.append(f" {clean_line(compared.problems[run_id])}", BAD)
        elif run_id not in compared.views:
            text.append(" being read …", MUTED)
        elif not (view := compared.views[run_id]).ended and view.at is not None:
            text.append(f" as of {age_label(now - view.at)}", MUTED)
        text.append("   ")
    return text


GAP = 2
"""Columns between two runs."""


@dataclass(frozen=True)
class SideBySide:
    """A table with a column for each run, as wide as there is room: names and values that are cut still differ where they do.
    ``runs`` are run_id and colour."""

    title: str
    rows: Sequence[tuple[str, dict[str, str]]]
    runs: Sequence[tuple[str, str]]

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        names = [clean_line(name, 60) for name, _ in self.rows]
        first = max(map(len, [self.title, *names]))
        width = max(6, (options.max_width - first) // len(self.runs) - GAP)
        table = Table(box=None, pad_edge=False, show_edge=False, header_style=MUTED)
        table.add_column(Text(self.title, f"bold {TEXT}"), no_wrap=True)
        heads = told_apart([clean_line(run_id, 64) for run_id, _ in self.runs], width)
        for head, (_, colour) in zip(heads, self.runs, strict=True):
            table.add_column(Text(head, colour), no_wrap=True, overflow="ellipsis", width=width)
        for name, (_, values) in zip(names, self.rows, strict=True):
            cells = told_apart([clean_line(values.get(run_id, ""), 200) for run_id, _ in self.runs], width)
            table.add_row(Text(name, MUTED), *(Text(cell, TEXT) for cell in cells))
        yield table


def side_by_side(title: str, rows: Sequence[tuple[str, dict[str, str]]], compared: Compared, empty: str) -> SideBySide | Text:
    """The rows as a table, or why there is none."""
    if not rows:
        return Text(f"{title}: {empty}", MUTED)
    return SideBySide(title, rows, [(run_id, compared.colour(run_id)) for run_id in compared.run_ids])


class CompareScreen(PlotScreen):
    HERE = "compare"
    BINDINGS = bindings_of("compare")
    _figure = "loss"
    _version = 0
    _shown: object = None

    def body(self) -> ComposeResult:
        yield Static(NOTHING, id="nothing", markup=False)
        with Vertical(id="compare"):
            yield Static(id="legend", markup=False)
            yield MetricPlot("Loss", clock=self.console_app.clock, id="overlay")
            with VerticalScroll(id="tables"):
                yield Static(id="figures", markup=False)
                yield Static(id="differences", markup=False)

    def on_mount(self) -> None:
        self.query_one("#tables").focus()

    def present(self, console: Console, now: float) -> None:
        compared = self.console_app.compared
        self.query_one("#nothing").display = not compared.run_ids
        self.query_one("#compare").display = bool(compared.run_ids)
        if not compared.run_ids:
            return
        plot, figure = self.query_one("#overlay", MetricPlot), FIGURES[self._figure]
        shown = (compared.run_ids, tuple(view.metrics.version for view in compared.views.values()), len(compared.specs))
        plot.show(
            (shown, self._figure), figure, partial(compared.curves, self._figure, self._look.axis), self._look,
            nothing="they left no points" if compared.ended else "no points yet",
        )  # fmt: skip
        title = figure.title + (", position 1" if self._figure in {"acceptance", "loss_pos"} else "")
        caption(plot, title=title, subtitle=self.words_below(plot, "lines: training · dots: held-out"))
        lines, runs = self.query_one("#legend", Static), legend(compared, now)
        if lines.content != runs:
            lines.update(runs)
        if (shown, compared.problems) == self._shown:
            return
        self._shown = (shown, dict(compared.problems))
        figures = side_by_side("Figures", compared.figures(), compared, "being read")
        self.query_one("#figures", Static).update(figures)
        same = "the specs are the same" if len(compared.specs) > 1 else "being read"
        differences = side_by_side("What differs", compared.differences(), compared, same)
        self.query_one("#differences", Static).update(differences)

    def plots(self) -> list[MetricPlot]:
        return [self.query_one("#overlay", MetricPlot)]
