"""From points to what is drawn: smoothing, the part in sight, the range of the values, the point under the cursor."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tui.plotting.series import Point
from tui.plotting.view import Range

CLIPPED_SHARE = 0.02
"""Values outside the middle 96 % do not stretch the axis while outliers are cut."""


def smoothed(points: Sequence[Point], weight: float) -> list[Point]:
    """An exponential moving average over all points before anything is cut away (smoothing what is in sight only would
    change a value with the zoom). Its start is corrected for the missing past, as Adam's moments are. Gaps stay gaps."""
    if not weight:
        return list(points)
    out: list[Point] = []
    average, part = 0.0, 1.0
    for x, y in points:
        if not math.isfinite(y):
            out.append((x, math.nan))
            continue
        average = weight * average + (1 - weight) * y
        part *= weight
        out.append((x, average / (1 - part)))
    return out


def in_sight(points: Sequence[Point], window: Range) -> list[Point]:
    """The points inside the window, and one beyond each edge so that a line runs to the edge. ``points`` ascend."""
    starts = [x for x, _ in points]
    first, last = bisect_left(starts, window[0]), bisect_right(starts, window[1])
    return list(points[max(0, first - 1) : last + 1])


def positive(points: Iterable[Point]) -> list[Point]:
    """For a logarithmic axis: the logarithms to base ten, with gaps where a value has none."""
    return [(x, math.log10(y) if math.isfinite(y) and y > 0 else math.nan) for x, y in points]


def value_range(values: Sequence[float], *, low: float | None = None, clip: bool = False) -> Range:
    """From the smallest to the largest of the finite ``values``, or with ``clip`` of their middle part; at least down to
    ``low``. Never of no height. Raises ValueError where there is no value."""
    ordered = sorted(values)
    cut = int(len(ordered) * CLIPPED_SHARE / 2) if clip else 0
    if clip and not cut and len(ordered) >= 10:
        cut = 1
    bottom, top = ordered[cut], ordered[len(ordered) - 1 - cut]
    if low is not None:
        bottom = min(low, bottom)
    if top - bottom < 1e-9:
        half = 0.5 * abs(bottom or 1)
        return bottom - half, top + half
    return bottom, top


def clipped(points: Iterable[Point], bounds: Range) -> list[Point]:
    """Values beyond ``bounds`` laid on them, so that a cut outlier is still seen where it was."""
    return [(x, min(bounds[1], max(bounds[0], y)) if math.isfinite(y) else y) for x, y in points]


def nearest(points: Sequence[Point], x: float) -> Point | None:
    """The real point nearest to ``x``; never one in between. None where there is no finite point."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return None
    place = bisect_left([point[0] for point in finite], x)
    return min(finite[max(0, place - 1) : place + 1], key=lambda point: abs(point[0] - x))


class Reached:
    """Which step a training had reached at a moment, by the times and steps of its rows. Made once for many moments: a plot
    asks for thousands of them."""

    def __init__(self, times: Iterable[float], steps: Iterable[float]) -> None:
        pairs = sorted(zip(times, steps, strict=True))
        self.times = [t for t, _ in pairs]
        self._steps = [float(step) for _, step in pairs]

    def at(self, t: float) -> float | None:
        """The step reached at time ``t``; None before the first row."""
        place = bisect_right(self.times, t)
        return self._steps[place - 1] if place else None
