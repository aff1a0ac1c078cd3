"""Compare: up to six runs in one plot, then their figures and what differs between their specs, side by side."""

from __future__ import annotations

from functools import partial

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tui.comparing import Compared
from tui.formats import clean_line
from tui.plotting.figures import FIGURES
from tui.screens.base import bindings_of
from tui.screens.looking import PlotScreen
from tui.state import Console
from tui.themes.palette import BAD, MUTED, TEXT
from tui.widgets.panel import caption
from tui.widgets.plot import MetricPlot

NOTHING = "No runs are compared.  Press 5, mark runs with Space, and press c."


def legend(compared: Compared) -> Text:
    """The runs in their colours, and what is missing of one."""
    text = Text()
    for run_id in compared.run_ids:
        text.append("━ ", compared.colour(run_id))
        text.append(clean_line(run_id, 64), TEXT)
        if run_id in compared.problems:
            text.append(f" {clean_line(compared.problems[run_id])}", BAD)
        elif run_id not in compared.views:
            text.append(" being read …", MUTED)
        text.append("   ")
    return text


def side_by_side(title: str, rows: list[tuple[str, dict[str, str]]], compared: Compared, empty: str) -> Table | Text:
    """A table with a column for each run."""
    if not rows:
        return Text(f"{title}: {empty}", MUTED)
    table = Table(box=None, pad_edge=False, expand=True, show_edge=False, header_style=MUTED, title_justify="left")
    table.add_column(Text(title, f"bold {TEXT}"), no_wrap=True)
    for run_id in compared.run_ids:
        table.add_column(Text(clean_line(run_id, 64), compared.colour(run_id)), no_wrap=True, overflow="ellipsis", ratio=1)
    for name, values in rows:
        cells = [Text(clean_line(values.get(run_id, ""), 200), TEXT) for run_id in compared.run_ids]
        table.add_row(Text(clean_line(name, 60), MUTED), *cells)
    return table


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
        if (shown, compared.problems) == self._shown:
            return
        self._shown = (shown, dict(compared.problems))
        self.query_one("#legend", Static).update(legend(compared))
        figures = side_by_side("Figures", compared.figures(), compared, "being read")
        self.query_one("#figures", Static).update(figures)
        same = "the specs are the same" if len(compared.specs) > 1 else "being read"
        differences = side_by_side("What differs", compared.differences(), compared, same)
        self.query_one("#differences", Static).update(differences)

    def plots(self) -> list[MetricPlot]:
        return [self.query_one("#overlay", MetricPlot)]
