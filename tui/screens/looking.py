"""How the plots of a screen are looked at: zoom, pan, axis, smoothing, cursor. One place for every screen that has plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
    """A screen whose plots share one way of being looked at, ``_look``; ``plots`` gives those in sight, the leading one first."""

    _look = View()

    def plots(self) -> Sequence[MetricPlot]:
        raise NotImplementedError

    def action_look(self, what: str) -> None:
        """Change how the plots are looked at; they share their axis."""
        plots = self.plots()
        if what == "log" and not self._look.log and not any(plot.can_log for plot in plots):
            self.console_app.tell("Nothing of it is positive, so there is no logarithm to draw.", "warning")
            return
        everything = next((plot.everything for plot in plots if plot.everything is not None), None)
        if everything is None:
            self.console_app.tell("There are no points to look at yet.", "warning")
            return
        self._look = LOOKS[what](self._look, everything)
        self.refresh_known()
