"""Plots that cost little and never break: thinned, sanitised, rebuilt only where the data or the size changed.

``textual-plotext`` rebuilds at every repaint and raises on Inf; an exception while painting would end the app. Here the
picture is kept, and a repaint (focus, a dialog closing) draws the kept one. A new one is built in a turn of its own before it is
painted: within the painting of everything else that has changed it held up the event loop for up to 58 ms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual_plotext import PlotextPlot

from tui.formats import figure_label, short_duration
from tui.plotting.figures import Figure, Line, Mark, reading
from tui.plotting.series import Point, segments, thin
from tui.plotting.shaping import clipped, in_sight, positive, smoothed, value_range
from tui.plotting.view import Axis, Range, View
from tui.themes.palette import BACKGROUND, FAINT, MUTED, TEXT

_SGR = re.compile(r"\x1b\[([\d;]*)m")
FRAME = 4
"""Columns of a frame's line that words in it leave free."""
REDRAW_S = 3.0
"""Seconds between two rebuilds while data keeps coming."""
TURN_S = 0.5
"""Within this, two rebuilds would be of one turn; the next turn is a second later."""


def rgb(colour: str) -> tuple[int, int, int]:
    """``#62c6c2`` as plotext wants it."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def said(words: str) -> str:
    """Words in place of a picture."""
    return "\x1b[38;2;{};{};{}m{}\x1b[0m".format(*rgb(MUTED), words)


@lru_cache(256)
def _style(codes: str) -> Style:
    """The style of one SGR sequence of plotext's: colours by their three numbers, and nothing else."""
    numbers, colours = [int(code or 0) for code in codes.split(";")], {}
    while len(numbers) >= 5 and numbers[0] in (38, 48) and numbers[1] == 2:
        colours["color" if numbers[0] == 38 else "bgcolor"] = Color.from_rgb(*numbers[2:5])
        numbers = numbers[5:]
    return Style.from_color(colours.get("color"), colours.get("bgcolor"))


def strip_of(line: str, width: int, ground: Style) -> Strip:
    """A line with plotext's colours as Textual paints it, ``width`` cells wide. Through ``Text.from_ansi`` and Textual's
    content this took longer than the plot itself."""
    segments, style = [], ground
    pieces = _SGR.split(line)
    for place, piece in enumerate(pieces):
        if place % 2:
            style = ground if piece in ("", "0") else style + _style(piece)
        elif piece:
            segments.append(Segment(piece, style))
    return Strip(segments).adjust_cell_length(width, ground)


def ticks_of(first: float, last: float, count: int, axis: Axis) -> tuple[list[float], list[str]]:
    """At most ``count`` places on the axis, evenly spread from the first to the last, with their labels."""
    places: list[float] = [first + (last - first) * k / (count - 1) for k in range(count)]
    if axis == "time":
        return places, [short_duration(place) for place in places]
    steps = sorted({round(place) for place in places})
    return [float(step) for step in steps], [f"{step:,}" for step in steps]


def value_ticks(low: float, high: float, count: int, *, log: bool) -> tuple[list[float], list[str]]:
    """Places on the axis of values with their labels; on a logarithmic axis the places are logarithms."""
    places = [low + (high - low) * k / (count - 1) for k in range(count)]
    return places, [figure_label(10**place if log else place) for place in places]


def prepared(points: Sequence[Point], columns: int) -> list[list[Point]]:
    """The finite pieces of a series, thinned to what ``columns`` columns can show."""
    return segments(thin(points, columns))


class MetricPlot(PlotextPlot):  # type: ignore[misc,unused-ignore]
    """``show`` gives it new data at any pace; it rebuilds at most every ``REDRAW_S``, at once where the operator changed how
    it is looked at, and only while visible. It takes the focus, so that arrows are the plots' and not the log's."""

    can_focus = True

    def __init__(self, title: str, *, clock: Callable[[], float], id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title
        self._clock = clock
        self._figure: Figure | None = None
        self._lines: tuple[Line, ...] = ()
        self._marks: tuple[Mark, ...] = ()
        self._view = View()
        self._version: object = None
        self.nothing = "no points yet"
        """What is said in place of a picture."""
        self._span: Range | None = None
        self._kept: tuple[tuple[object, ...], list[Strip]] | None = None
        self._awaited = False
        """Whether the next picture's turn is still to come; until then the kept one stands."""
        self._drawn_at = -math.inf
        self._rests_until = -math.inf
        self.builds = 0

    def show(
        self,
        version: object,
        figure: Figure,
        lines: Callable[[], Sequence[Line]],
        view: View,
        marks: Callable[[], Sequence[Mark]] = tuple,
        nothing: str = "no points yet",
        span: Range | None = None,
        beside: MetricPlot | None = None,
    ) -> None:
        """Draw ``lines()`` as ``view`` says, where ``version`` differs from what is drawn, it is time (a new view is shown at
        once), and the plot is on screen. ``nothing`` is said where there is no point; ``span`` is the whole
        axis, where that is not these lines' own. Where the plot ``beside`` was just built anew, this one waits for the next turn:
        two at once hold up the keys for twice as long."""
        self._span = span
        if nothing != self.nothing:
            self.nothing, self._kept = nothing, None
            self.refresh()
        now = self._clock()
        on_screen = self.is_on_screen and self.size.width > 0
        looked_at = (figure, view)
        same_look = looked_at == (self._figure, self._view)
        if not on_screen or (same_look and (version == self._version or 0 <= now - self._drawn_at < REDRAW_S)):
            return
        if same_look and now < self._rests_until and math.isfinite(self._drawn_at):
            return
        if same_look and beside is not None and math.isfinite(self._drawn_at) and 0 <= now - beside._drawn_at < TURN_S:
            return
        if version != self._version or figure is not self._figure or view.axis != self._view.axis:
            self._lines, self._marks = tuple(lines()), tuple(marks())
        self._version, (self._figure, self._view) = version, looked_at
        # An empty plot costs nothing, so the first points need not wait.
        self._drawn_at = now if any(line.points for line in self._lines) else -math.inf
        if self._kept is None or not (self._awaited or self.call_after_refresh(self._renew)):
            self.refresh()
        else:
            self._awaited = True

    def _renew(self) -> None:
        """Build the picture anew, and have it painted."""
        self._awaited = False
        self._picture()
        self.refresh()

    def rest(self) -> None:
        """The screen comes to the front: what was drawn last is painted first, and built anew in the next turn, so that the key
        does not wait for two plots."""
        self._rests_until = self._clock() + TURN_S

    @property
    def everything(self) -> Range | None:
        """From the first point to the last one, None where there is none."""
        places = [x for line in self._lines for x, y in line.points if math.isfinite(y)]
        return (min(places), max(places)) if places else None

    @property
    def reading(self) -> str:
        """The real values at the cursor, as the frame below has room for them."""
        if self._view.cursor is None:
            return ""
        return reading(self._lines, self._view.cursor, self._view.axis, self.size.width - FRAME)

    @property
    def can_log(self) -> bool:
        """Whether anything could be seen on a logarithmic axis."""
        return any(y > 0 for line in self._lines for _, y in line.points if math.isfinite(y))

    def render_line(self, y: int) -> Strip:
        """A line of the kept picture; the picture is built anew where what it shows, or its size, is another."""
        strips = self._picture()
        return strips[y] if y < len(strips) else Strip.blank(self.size.width, self.visual_style.rich_style)

    def _picture(self) -> list[Strip]:
        """The kept picture, or a new one where what it shows, or its size, is another."""
        width, height = self.size.width, self.size.height
        key = (width, height, self._version, self._figure and self._figure.title, self._view, self._span)
        if self._kept is None or (self._kept[0] != key and not (self._awaited and self._kept[0][:2] == key[:2])):
            ground = self.visual_style.rich_style
            lines = self._build(width, height).split("\n")
            self._kept = (key, [strip_of(line, width, ground) for line in lines])
        return self._kept[1]

    def _drawn(self, columns: int, window: Range) -> list[tuple[Line, list[list[Point]]]]:
        """The pieces to draw: where lines are smoothed, first the raw ones, faint, then the smooth ones over them."""
        raw: list[tuple[Line, list[list[Point]]]] = []
        smooth: list[tuple[Line, list[list[Point]]]] = []
        for line in self._lines:
            points: list[Point] = list(line.points)
            averaged = smoothed(points, self._view.smoothing) if self._view.smoothing and not line.dots else None
            faint = replace(line, colour=FAINT) if averaged is not None else line
            for shaped, drawn, into in ((points, faint, raw), (averaged, line, smooth)):
                if shaped is None:
                    continue
                seen = in_sight(positive(shaped) if self._view.log else shaped, window)
                if pieces := prepared(seen, columns):
                    into.append((drawn, pieces))
        return raw + smooth

    def _build(self, width: int, height: int) -> str:
        """The picture as text with ANSI colours."""
        everything = self.everything
        if everything is None or self._figure is None or width < 12 or height < 4:
            return said(self.nothing) if everything is None else ""
        window = self._view.within(self._span or everything)
        drawn = self._drawn(max(8, width - 8), window)
        if not drawn:
            return said("no points in this part")
        self.builds += 1
        log = self._view.log
        values = [y for _, pieces in drawn for piece in pieces for x, y in piece if window[0] <= x <= window[1]]
        values = values or [y for _, pieces in drawn for piece in pieces for _, y in piece]
        bounds = value_range(values, low=None if log else self._figure.low, clip=self._view.clip)
        plt = self.plt
        plt.clear_figure()
        plt.ylim(*bounds)
        plt.xlim(window[0], window[1] if window[1] > window[0] else window[0] + 1)
        for mark in self._marks:
            if window[0] <= mark.x <= window[1]:
                plt.vertical_line(mark.x, color=rgb(mark.colour))
        marker = "hd" if self._view.blocks else "braille"
        for line, pieces in drawn:
            for piece in pieces:
                xs, ys = [x for x, _ in piece], [y for _, y in clipped(piece, bounds)]
                if line.dots or len(piece) == 1:
                    plt.scatter(xs, ys, color=rgb(line.colour), marker="●" if line.dots else marker)
                else:
                    plt.plot(xs, ys, color=rgb(line.colour), marker=marker)
        if self._view.cursor is not None:
            plt.vertical_line(self._view.cursor, color=rgb(TEXT))
        plt.xticks(*ticks_of(*window, 3 if width < 50 else 6, self._view.axis))
        plt.yticks(*value_ticks(*bounds, 3 if height < 10 else 5, log=log))
        plt.xaxes(True, False)
        plt.yaxes(True, False)
        plt.canvas_color(rgb(BACKGROUND))
        plt.axes_color(rgb(BACKGROUND))
        plt.ticks_color(rgb(MUTED))
        plt.plotsize(width, height)
        # As textual-plotext does: plotsize alone does not always take.
        plt._set_size(width, height)
        return str(plt.build())
