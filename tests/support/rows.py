"""Metric rows as a reader of the whole run sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eagle3.core.records import MetricRow


class RowTable:
    """One row for each (stage, split, step): the highest attempt's."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, int], MetricRow] = {}

    def add(self, rows: Iterable[MetricRow]) -> None:
        for row in rows:
            known = self._rows.get((row.stage, row.split, row.step))
            if known is None or (row.attempt, row.seq) > (known.attempt, known.seq):
                self._rows[row.stage, row.split, row.step] = row

    def __iter__(self) -> Iterator[MetricRow]:
        return iter(sorted(self._rows.values(), key=lambda row: (row.stage, row.split, row.step)))
