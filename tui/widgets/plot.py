"""Plots that cost little and never break: thinned, sanitised, rebuilt only where the data or the size changed.

``textual-plotext`` rebuilds at every repaint and raises on Inf; an exception in ``render`` would end the app. Here the
picture is kept, and a repaint (focus, a dialog closing) draws the kept one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual_plotext import PlotextPlot

from tui.plotting.series import Point, segments, thin
from tui.themes.palette import BACKGROUND, MUTED

REDRAW_S = 2.0
"""Seconds between two rebuilds while data keeps coming."""


@dataclass(frozen=True)
class Line:
    """A series to draw. ``dots`` draws points without a line between them."""

    points: tuple[Point, ...]
    colour: str
    dots: bool = False


def rgb(colour: str) -> tuple[int, int, int]:
    """``#62c6c2`` as plotext wants it."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def step_ticks(first: float, last: float, count: int) -> list[int]:
    """At most ``count`` whole steps, evenly spread from the first to the last."""
    return sorted({round(first + (last - first) * k / (count - 1)) for k in range(count)})


def prepared(line: Line, columns: int) -> list[list[Point]]:
    """The finite pieces of a series, thinned to what ``columns`` columns can show."""
    return segments(thin(line.points, columns))


class MetricPlot(PlotextPlot):  # type: ignore[misc,unused-ignore]
    """``show`` gives it new data at any pace; it rebuilds at most every ``REDRAW_S`` and only while visible."""

    def __init__(self, title: str, *, clock: Callable[[], float], low: float | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title
        self._clock = clock
        self._low = low
        self._lines: tuple[Line, ...] = ()
        self._version: object = None
        self._kept: tuple[object, Text] | None = None
        self._drawn_at = -math.inf
        self.builds = 0

    def show(self, version: object, lines: Callable[[], Sequence[Line]]) -> None:
        """Draw ``lines()`` where ``version`` differs from what is drawn, it is time, and the plot is on screen."""
        now = self._clock()
        on_screen = self.is_on_screen and self.size.width > 0
        if version == self._version or not on_screen or 0 <= now - self._drawn_at < REDRAW_S:
            return
        self._version = version
        self._lines = tuple(lines())
        # An empty plot costs nothing, so the first points need not wait.
        self._drawn_at = now if any(line.points for line in self._lines) else -math.inf
        self.refresh()

    def render(self) -> Text:
        width, height = self.size.width, self.size.height
        key = (self._version, width, height)
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        self._kept = (key, self._build(width, height))
        return self._kept[1]

    def _build(self, width: int, height: int) -> Text:
        drawn = [(line, pieces) for line in self._lines if (pieces := prepared(line, max(8, width - 8)))]
        if not drawn or width < 12 or height < 4:
            return Text("no points yet" if not drawn else "", style=MUTED)
        self.builds += 1
        plt = self.plt
        plt.clear_figure()
        values = [y for _, pieces in drawn for piece in pieces for _, y in piece]
        steps = [x for _, pieces in drawn for piece in pieces for x, _ in piece]
        low, high = min(values), max(values)
        if self._low is not None:
            low = min(self._low, low)
        if high - low < 1e-9:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        plt.ylim(low, high)
        plt.xlim(min(steps), max(steps) if max(steps) > min(steps) else min(steps) + 1)
        for line, pieces in drawn:
            for piece in pieces:
                xs, ys = [x for x, _ in piece], [y for _, y in piece]
                if line.dots or len(piece) == 1:
                    plt.scatter(xs, ys, color=rgb(line.colour), marker="●" if line.dots else "braille")
                else:
                    plt.plot(xs, ys, color=rgb(line.colour), marker="braille")
        ticks = step_ticks(min(steps), max(steps), 3 if width < 50 else 6)
        plt.xticks(ticks, [f"{tick:,}" for tick in ticks])
        plt.yfrequency(3 if height < 10 else 5)
        plt.xaxes(True, False)
        plt.yaxes(True, False)
        plt.canvas_color(rgb(BACKGROUND))
        plt.axes_color(rgb(BACKGROUND))
        plt.ticks_color(rgb(MUTED))
        plt.plotsize(width, height)
        # As textual-plotext does: plotsize alone does not always take.
        plt._set_size(width, height)
        return Text.from_ansi(plt.build())
