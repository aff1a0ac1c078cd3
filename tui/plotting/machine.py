"""What the machine did beside the training, on the training's own axis: GPU memory and utilisation, free disk. Pure.

The samples are this console's own, so they begin when it began to watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tui.history import History, Trail
from tui.plotting.figures import Figure, Line
from tui.plotting.rows import Metrics
from tui.plotting.shaping import Reached
from tui.plotting.view import Axis
from tui.themes.palette import SERIES

GIB = float(1 << 30)


@dataclass(frozen=True)
class MachineFigure:
    """``trails``: the samples by what they are of. ``scale`` divides a sample; ``nothing`` is said where there is none."""

    figure: Figure
    trails: Callable[[History], Mapping[str, Trail]]
    scale: float
    nothing: str

    def lines(self, history: History, metrics: Metrics, axis: Axis) -> list[Line]:
        """A line for each GPU or disk. On the axis of steps only what was seen while training went on."""
        reached, begun = metrics.reached, metrics.begun
        found = []
        for number, (name, trail) in enumerate(self.trails(history).items()):
            points = tuple(
                (x, value / self.scale) for t, value in trail.samples if (x := place(t, reached, begun, axis)) is not None
            )
            if points:
                found.append(Line(points, SERIES[number % len(SERIES)], name=name))
        return found

    def since(self, history: History) -> float | None:
        """When the first sample was taken (container's clock); None where there is none."""
        return min((trail.samples[0][0] for trail in self.trails(history).values() if trail.samples), default=None)


def place(t: float, reached: Reached, begun: float | None, axis: Axis) -> float | None:
    """Where a moment stands on the axis of the training; None outside of it."""
    if begun is None or not reached.times or t < begun:
        return None
    if axis == "time":
        return t - begun
    return reached.at(t) if t <= reached.times[-1] else None


def _gpus(trails: Mapping[int, Trail]) -> dict[str, Trail]:
    return {f"GPU {index}": trail for index, trail in sorted(trails.items())}


def _workspace(seen: History) -> dict[str, Trail]:
    """The disk that the probe answers with first: the workspace's."""
    return dict(list(seen.room.items())[:1])


def _none(metrics: Metrics, axis: Axis) -> list[Line]:
    return []


_NO_GPU = "no GPU was seen while training went on"
MACHINE_FIGURES: dict[str, MachineFigure] = {
    "gpu_memory": MachineFigure(Figure("GPU memory, GiB", _none, low=0.0), lambda seen: _gpus(seen.used), GIB, _NO_GPU),
    "gpu_work": MachineFigure(Figure("GPU utilisation, %", _none, low=0.0), lambda seen: _gpus(seen.work), 1.0, _NO_GPU),
    "disk_free": MachineFigure(
        Figure("Disk free, GiB", _none), _workspace, GIB, "no disk was seen while training went on"
    ),
}  # fmt: skip
"""By name, after the figures of the run itself."""
