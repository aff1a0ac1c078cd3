"""How the plots of a screen are looked at: zoom, pan, axis, smoothing, cursor. One place for every screen that has plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from tui.plotting.figures import FIGURES, following
from tui.plotting.view import HOUR_S, Range, View
from tui.screens.base import ConsoleScreen
from tui.widgets.plot import MetricPlot


def _cursor(columns: int) -> Callable[[View, Range], View]:
    return lambda view, everything: view.moved(columns, 80, everything)


LOOKS: dict[str, Callable[[View, Range], View]] = {
    "in": lambda view, everything: view.zoomed(0.5, everything),
    "out": lambda view, everything: view.zoomed(2.0, everything),
    "back": lambda view, everything: view.panned(-0.5, everything),
    "on": lambda view, everything: view.panned(0.5, everything),
    "all": lambda view, everything: view.all(),
    "hour": lambda view, everything: view.on("time").last(HOUR_S),
    "axis": lambda view, everything: view.on("time" if view.axis == "step" else "step"),
    "log": lambda view, everything: replace(view, log=not view.log),
    "smooth": lambda view, everything: view.smoother(),
    "clip": lambda view, everything: replace(view, clip=not view.clip),
    "blocks": lambda view, everything: replace(view, blocks=not view.blocks),
    "cursor_back": _cursor(-1),
    "cursor_on": _cursor(1),
    "no_cursor": lambda view, everything: replace(view, cursor=None),
}
"""What a key does to the plots."""


class PlotScreen(ConsoleScreen):
    """A screen whose plots share one way of being looked at, ``_look``; ``plots`` gives those in sight, the leading one first.
    One of them shows the figure of ``figures`` that is chosen, ``_figure``."""

    _look = View()
    _figure: str
    figures: ClassVar[Sequence[str]] = tuple(FIGURES)

    def plots(self) -> Sequence[MetricPlot]:
        raise NotImplementedError

    def words_below(self, plot: MetricPlot, otherwise: str) -> str:
        """What stands below a plot: the values at the cursor, else how it is looked at, else ``otherwise``."""
        return plot.reading or self._look.words() or otherwise

    def action_other_figure(self, step: int) -> None:
        """Another of the figures."""
        self._figure = following(self._figure, step, self.figures)
        self.refresh_known()

    def action_look(self, what: str) -> None:
        """Change how the plots are looked at; they share their axis."""
        plots = self.plots()
        if what == "log" and not self._look.log and not any(plot.can_log for plot in plots):
            self.console_app.tell("Nothing of it is positive, so there is no logarithm to draw.", "warning")
            return
        everything = next((plot.everything for plot in plots if plot.everything is not None), None)
        if everything is None:
            self.console_app.tell(f"There is nothing to look at: {plots[0].nothing}.", "warning")
            return
        self._look = LOOKS[what](self._look, everything)
        self.refresh_known()
