"""The metric rows of a run as columns of numbers: 20,000 rows take 3 MB, where as records they take 40. Pure.

A run may write rows for weeks while it is watched, so of each stage and split at most ``KEPT`` rows stay here: the newest as
they came, of the older ones those with the smallest and the largest loss of each few neighbours, so that spikes stay. All
rows are in the container.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from tui.plotting.shaping import Reached

if TYPE_CHECKING:
    from eagle3.core.records import MetricRow

KEPT = 20_000
"""Rows of one stage and split; a plot of so many is drawn in a few hundredths of a second."""
GROUP = 4
"""Old rows of which two stay each time."""
SINGLE = ("loss", "accept_len", "lr", "grad_norm", "tok_s")
MANY = ("loss_pos", "acc_pos")


def number(value: float | None) -> float:
    """The value, or NaN where it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def spikes_kept(values: Sequence[float], most: int) -> list[int]:
    """About ``most`` places of a series: of each stretch those of the smallest and the largest value, and the first and the
    last of all. NaN is no value."""
    if len(values) <= most:
        return list(range(len(values)))
    stretch = -(-2 * len(values) // max(2, most - 2))
    stay = {0, len(values) - 1}
    for begin in range(0, len(values), stretch):
        known = [k for k in range(begin, min(len(values), begin + stretch)) if not math.isnan(values[k])]
        stay |= {min(known, key=values.__getitem__), max(known, key=values.__getitem__)} if known else {begin}
    return sorted(stay)


class Column:
    """The rows of one stage and split by step, the highest attempt winning for each step. ``kept`` is how many rows stay."""

    def __init__(self, stage: str, split: str, kept: int = KEPT) -> None:
        self._stage, self._split, self._kept = stage, split, kept
        self._empty()

    def _empty(self) -> None:
        self.steps: array[int] = array("q")
        self.times: array[float] = array("d")
        self._attempts: array[int] = array("l")
        self._seqs: array[int] = array("q")
        self._single = {name: array("d") for name in SINGLE}
        self._many: dict[str, list[array[float]]] = {name: [] for name in MANY}
        self._counts = {name: array("B") for name in MANY}

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, row: MetricRow) -> bool:
        """Add a row; False where one of a later attempt holds already."""
        place = len(self) if not self.steps or row.step > self.steps[-1] else bisect_left(self.steps, row.step)
        if place < len(self) and self.steps[place] == row.step:
            if (row.attempt, row.seq) < (self._attempts[place], self._seqs[place]):
                return False
            self._put(place, row, lambda column, value: column.__setitem__(place, value))
        else:
            self._put(place, row, lambda column, value: column.insert(place, value))
            if len(self) > self._kept:
                self._thin()
        return True

    def _put(self, place: int, row: MetricRow, put: Callable[[array[Any], float], None]) -> None:
        had = len(self)
        put(self.steps, row.step)
        put(self._attempts, row.attempt)
        put(self._seqs, row.seq)
        put(self.times, row.t)
        for name in SINGLE:
            put(self._single[name], number(getattr(row, name)))
        for name in MANY:
            values = getattr(row, name)[:255]
            put(self._counts[name], len(values))
            columns = self._many[name]
            while len(columns) < len(values):
                columns.append(array("d", [math.nan]) * had)
            for k, column in enumerate(columns):
                put(column, number(values[k]) if k < len(values) else math.nan)

    def cut(self, step: int, attempt: int) -> int:
        """Drop the rows of attempts before ``attempt`` from ``step`` on; how many there were."""
        before, begin = len(self), bisect_left(self.steps, step)
        stay = [k for k in range(begin, before) if self._attempts[k] >= attempt]
        if len(stay) < before - begin:
            for column in self._columns():
                column[begin:] = array(column.typecode, [column[k] for k in stay])
        return before - len(self)

    def _columns(self) -> list[array[Any]]:
        columns: list[array[Any]] = [self.steps, self.times, self._attempts, self._seqs]
        return [*columns, *self._single.values(), *self._counts.values(), *(c for many in self._many.values() for c in many)]

    def _thin(self) -> None:
        """Of the older three quarters every second row goes."""
        old = len(self) * 3 // 4 // GROUP * GROUP
        losses, stay = self._single["loss"], []
        for begin in range(0, old, GROUP):
            ranked = sorted(range(begin, begin + GROUP), key=lambda k: (math.isnan(losses[k]), losses[k]))
            known = [k for k in ranked if not math.isnan(losses[k])] or ranked
            stay += sorted({known[0], known[-1]})
        stay += range(old, len(self))
        for column in self._columns():
            column[:] = array(column.typecode, [column[k] for k in stay])

    def values(self, name: str, position: int | None = None) -> array[float]:
        """One figure of all rows, NaN where a row has none; ``position`` of a figure with one value for each."""
        if position is None:
            return self._single[name]
        return self._many[name][position]

    def positions(self, name: str) -> int:
        """How many values such a figure has at the most."""
        return len(self._many[name])

    def having(self, name: str) -> array[int]:
        """How many values of such a figure each row has; 0 where it has none at all."""
        return self._counts[name]

    def row(self, place: int) -> MetricRow:
        """A row as a record again."""
        from eagle3.core.records import MetricRow  # with pydantic: not before the first picture

        values: dict[str, Any] = {name: _known(self._single[name][place]) for name in SINGLE}
        values |= {name: [_known(c[place]) for c in self._many[name][: self._counts[name][place]]] for name in MANY}
        values |= {"attempt": self._attempts[place], "seq": self._seqs[place], "t": self.times[place]}
        return MetricRow.model_construct(stage=self._stage, split=self._split, step=self.steps[place], **values)

    def sampled(self, most: int) -> list[MetricRow]:
        """About ``most`` rows by step: of each stretch those of the smallest and the largest loss, and the first and last."""
        return [self.row(place) for place in spikes_kept(self._single["loss"], most)]

    def __iter__(self) -> Iterator[MetricRow]:
        return (self.row(place) for place in range(len(self)))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class Metrics:
    """The rows of one run. ``version`` counts changes; ``taken`` the rows that came, a repeated step twice."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._columns: dict[tuple[str, str], Column] = {}
        self.version = 0
        self.taken = 0
        self.last_t: float | None = None
        """When the newest row was written (container's clock)."""
        self._begun: tuple[int, float | None] = (-1, None)
        self._reached: tuple[int, Reached] | None = None
        self._attempts: dict[str, int] = {}
        """The highest attempt seen of each stage."""

    def take(self, rows: Iterable[MetricRow]) -> None:
        """Add rows; a row of a lower attempt never replaces one of a higher. The first row of an attempt takes all that earlier
        ones wrote from its step on away: they are no part of this training, and would stand for its newest figures."""
        for row in rows:
            if row.attempt > self._attempts.get(row.stage, row.attempt):
                for (stage, split), other in self._columns.items():
                    if stage == row.stage:
                        self.taken -= other.cut(row.step if split == row.split else row.step + 1, row.attempt)
            self._attempts[row.stage] = max(row.attempt, self._attempts.get(row.stage, row.attempt))
            key = (row.stage, row.split)
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = Column(*key, kept=self._kept)
            self.taken += 1
            if column.take(row):
                self.version += 1
                self.last_t = row.t if self.last_t is None else max(self.last_t, row.t)

    def clear(self) -> None:
        """Forget everything: the file began again."""
        self._columns.clear()
        self._attempts.clear()
        self.version += 1
        self.taken, self.last_t = 0, None

    def __len__(self) -> int:
        return sum(map(len, self._columns.values()))

    @property
    def thinned(self) -> bool:
        """Whether old rows were left out here."""
        return any(len(column) >= self._kept // 2 for column in self._columns.values()) and self.taken > 1.02 * len(self)

    def column(self, stage: str, split: str) -> Column:
        """The rows of a stage and split; an empty one where there are none."""
        return self._columns.get((stage, split)) or Column(stage, split)

    def rows(self, stage: str, split: str) -> list[MetricRow]:
        """Rows of a stage and split by step, as records: for few, not for a plot."""
        return list(self.column(stage, split))

    def all_rows(self) -> list[MetricRow]:
        """Every row that is kept, in the order of time."""
        return sorted((row for column in self._columns.values() for row in column), key=lambda row: (row.t, row.seq))

    def copy(self) -> Metrics:
        """The same rows, for a thread: quick, as the columns are."""
        found = Metrics(self._kept)
        found._columns = deepcopy(self._columns)
        return found

    def sampled(self, most: int) -> list[MetricRow]:
        """Of each stage and split about ``most`` rows, its spikes among them: quick, whatever there is."""
        return [row for column in self._columns.values() for row in column.sampled(most)]

    def last(self, stage: str, split: str) -> MetricRow | None:
        """The row of the highest step."""
        column = self.column(stage, split)
        return column.row(len(column) - 1) if len(column) else None

    @property
    def begun(self) -> float | None:
        """When the first row of training was written (container's clock): where the axis of time begins."""
        if self._begun[0] != self.version:
            firsts = [min(column.times) for (stage, _), column in self._columns.items() if stage == "train" and len(column)]
            self._begun = (self.version, min(firsts, default=None))
        return self._begun[1]

    @property
    def reached(self) -> Reached:
        """Which step training had reached when (container's clock)."""
        if self._reached is None or self._reached[0] != self.version:
            column = self.column("train", "train")
            self._reached = (self.version, Reached(column.times, column.steps))
        return self._reached[1]

    def places(self, column: Column, axis: str) -> list[float]:
        """Where the rows stand on the axis: their steps, or the seconds since training began."""
        if axis == "step":
            return [float(step) for step in column.steps]
        begun = self.begun or 0.0
        return [t - begun for t in column.times]
