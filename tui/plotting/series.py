"""Metric rows as plottable series. Pure: superseding rows of earlier attempts, gaps where a value is not a number,
and thinning to what a plot can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eagle3.core.records import MetricRow

Point = tuple[float, float]


@dataclass
class Metrics:
    """The rows of one run, the highest attempt winning per (stage, split, step). ``version`` counts changes."""

    _rows: dict[tuple[str, str, int], MetricRow] = field(default_factory=dict)
    version: int = 0

    def take(self, rows: Iterable[MetricRow]) -> None:
        """Add rows; a row of a lower attempt never replaces one of a higher."""
        for row in rows:
            key = (row.stage, row.split, row.step)
            old = self._rows.get(key)
            if old is None or (row.attempt, row.seq) >= (old.attempt, old.seq):
                self._rows[key] = row
                self.version += 1

    def clear(self) -> None:
        """Forget everything: the file began again."""
        self._rows.clear()
        self.version += 1

    def rows(self, stage: str, split: str) -> list[MetricRow]:
        """Rows of a stage and split by step."""
        found = [row for (s, p, _), row in self._rows.items() if s == stage and p == split]
        return sorted(found, key=lambda row: row.step)

    def all_rows(self) -> list[MetricRow]:
        """Every row that holds, in the order of time."""
        return sorted(self._rows.values(), key=lambda row: (row.t, row.seq))

    def unordered(self) -> list[MetricRow]:
        """Every row that holds, in no order: for whoever sorts them elsewhere."""
        return list(self._rows.values())

    def last(self, stage: str, split: str) -> MetricRow | None:
        """The row of the highest step."""
        found = self.rows(stage, split)
        return found[-1] if found else None

    @property
    def last_t(self) -> float | None:
        """When the newest row was written (container's clock)."""
        return max((row.t for row in self._rows.values()), default=None)

    @property
    def begun(self) -> float | None:
        """When the first row of training was written (container's clock): where the axis of time begins."""
        return min((row.t for (stage, _, _), row in self._rows.items() if stage == "train"), default=None)

    def place(self, row: MetricRow, axis: str) -> float:
        """Where a row stands on the axis: its step, or the seconds since training began."""
        return float(row.step) if axis == "step" else row.t - (self.begun or 0.0)


def number(value: float | None) -> float:
    """The value, or NaN where it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def segments(points: Sequence[Point]) -> list[list[Point]]:
    """The runs of finite points between gaps."""
    out: list[list[Point]] = []
    open_segment = False
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            open_segment = False
            continue
        if not open_segment:
            out.append([])
            open_segment = True
        out[-1].append((x, y))
    return out


def thin(points: Sequence[Point], columns: int) -> list[Point]:
    """At most two points for each of ``columns`` columns: the smallest and the largest, in order. Spikes stay.

    Gaps survive: a column that holds only gaps gives one NaN.
    """
    columns = max(1, columns)
    if len(points) <= 2 * columns:
        return list(points)
    x0, x1 = points[0][0], points[-1][0]
    span = (x1 - x0) or 1.0
    buckets: list[list[Point]] = [[] for _ in range(columns)]
    for point in points:
        buckets[min(columns - 1, max(0, int((point[0] - x0) / span * columns)))].append(point)
    out: list[Point] = []
    for bucket in buckets:
        finite = [p for p in bucket if math.isfinite(p[1])]
        if not finite:
            out.extend((x, math.nan) for x, _ in bucket[:1])
            continue
        low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
        out.extend([low] if low == high else sorted((low, high)))
    return out
