"""What can be plotted of a run: each figure by name, with its lines on the axis of steps or of time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from math import isfinite

from eagle3.core.records import Event
from tui.formats import duration_label, figure_label
from tui.plotting.rows import Metrics
from tui.plotting.series import Point
from tui.plotting.shaping import nearest
from tui.plotting.view import Axis
from tui.themes.palette import ACCENT, FAINT, MUTED, SERIES, WARN


@dataclass(frozen=True)
class Line:
    """A series to draw. ``dots`` draws points without a line between them; ``name`` is what a reading calls it."""

    points: tuple[Point, ...]
    colour: str
    dots: bool = False
    name: str = ""


@dataclass(frozen=True)
class Mark:
    """Something that happened at ``x``: a vertical line in ``colour``."""

    x: float
    colour: str


@dataclass(frozen=True)
class Figure:
    """``low`` is where its axis begins at the latest, None where it begins at the smallest value."""

    title: str
    lines: Callable[[Metrics, Axis], list[Line]]
    low: float | None = None


def _of(name: str, *, stage: str = "train") -> Callable[[Metrics, Axis], list[Line]]:
    """Training as a line, held-out as dots, of one figure of a row."""

    def lines(metrics: Metrics, axis: Axis) -> list[Line]:
        found = []
        for split, colour, said in (("train", ACCENT, "train"), ("val", WARN, "held-out")):
            column = metrics.column(stage, split)
            points = zip(metrics.places(column, axis), column.values(name), strict=True)
            drawn = tuple(points) if split == "train" else tuple(point for point in points if isfinite(point[1]))
            if drawn:
                found.append(Line(drawn, colour, dots=split == "val", name=said))
        return found

    return lines


def _positions(name: str) -> Callable[[Metrics, Axis], list[Line]]:
    """One line for each position of the draft, held-out as dots of the same colour."""

    def lines(metrics: Metrics, axis: Axis) -> list[Line]:
        found = []
        for split in ("train", "val"):
            column = metrics.column("train", split)
            places, having = metrics.places(column, axis), column.having(name)
            for k in range(column.positions(name)):
                points = tuple(compress(zip(places, column.values(name, k), strict=True), having))
                said = f"position {k + 1}" + (" held-out" if split == "val" else "")
                found.append(Line(points, SERIES[min(k, len(SERIES) - 1)], dots=split == "val", name=said))
        return found

    return lines


FIGURES: dict[str, Figure] = {
    "loss": Figure("Loss", _of("loss")),
    "acceptance": Figure("Acceptance", _positions("acc_pos"), low=0.0),
    "length": Figure("Simulated acceptance length", _of("accept_len"), low=1.0),
    "loss_pos": Figure("Loss by position", _positions("loss_pos")),
    "lr": Figure("Learning rate", _of("lr"), low=0.0),
    "grad_norm": Figure("Gradient norm", _of("grad_norm"), low=0.0),
    "tok_s": Figure("Tokens per second", _of("tok_s"), low=0.0),
}
"""The figures by name, in the order in which a key goes through them."""


def following(name: str, step: int = 1, names: Sequence[str] = tuple(FIGURES)) -> str:
    """The figure ``step`` places after ``name``."""
    return names[(names.index(name) + step) % len(names)]


def marks_of(events: Sequence[Event], metrics: Metrics, axis: Axis) -> list[Mark]:
    """Checkpoints, later attempts and guards, at the step that training had reached or at their time."""
    reached, begun = metrics.reached, metrics.begun
    found = []
    for event in events:
        colour = _mark_colour(event)
        x = event.t - begun if begun is not None else None
        if axis == "step":
            x = float(event.step) if event.step is not None else reached.at(event.t)
        if colour and x is not None and x >= 0:
            found.append(Mark(x, colour))
    return found


def _mark_colour(event: Event) -> str:
    if event.guard_name:
        return WARN
    if event.kind in ("checkpoint", "checkpoint-saved"):
        return FAINT
    return MUTED if event.kind == "attempt_started" and event.attempt > 1 else ""


def place_label(x: float, axis: Axis) -> str:
    """A place on the axis in words."""
    return f"step {x:,.0f}" if axis == "step" else duration_label(x)


def reading(lines: Sequence[Line], x: float, axis: Axis, room: int = 200) -> str:
    """What the lines are at the real point nearest to ``x``: "step 120: train 4.31, held-out 4.52". Where that is longer than
    ``room`` columns the names go, which the colours tell ("120: 4.31 ●4.52"), then the dots."""
    of_line = [(line, point) for line in lines if not line.dots and (point := nearest(line.points, x)) is not None]
    if not of_line:
        of_line = [(line, point) for line in lines if (point := nearest(line.points, x)) is not None]
    if not of_line:
        return ""
    at = min((point[0] for _, point in of_line), key=lambda px: abs(px - x))
    dots = [(line, point) for line in lines if line.dots and (point := nearest(line.points, at)) is not None and point[0] == at]
    values = [f"{line.name} {figure_label(point[1])}" for line, point in [*of_line, *dots] if point[0] == at]
    place = place_label(at, axis)
    told = f"{place}: {', '.join(dict.fromkeys(values))}"
    found = dict.fromkeys([*of_line, *dots])
    drawn, dotted = (
        " ".join(figure_label(y) for line, (x_, y) in found if x_ == at and line.dots is dots_) for dots_ in (False, True)
    )
    short, brief = f"{drawn} ●{dotted}".removesuffix(" ●").lstrip(), place.removeprefix("step ")
    shorter = [f"{place}: {short}", f"{brief}: {short}", f"{place}: {drawn or short}", f"{brief}: {drawn or short}"]
    return next((words for words in (told, *shorter) if len(words) <= room), shorter[-1])
