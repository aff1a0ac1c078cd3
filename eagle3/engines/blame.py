"""Which item a server dies of: the samples, or the prompts, that were with it at each of its deaths, in ``deaths.jsonl``.

Several are with a server at once, so that a death says little of each. Items that were there at two deaths are suspects: they
are asked for when all others have landed, one at a time. A row is
``{"v","t","attempt","landed","in_flight": [{"index","id","ids"}]}``: ``landed`` counts the items that were whole by then, and
``ids`` is a hash of the content, so that a row says nothing of another item that has got the same index since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from eagle3.core.spec import hash_of
from eagle3.rows import Row, append_row, read_rows_past_torn, read_whole_rows, write_rows

NAME = "deaths.jsonl"
REASON = "the server dies of it"

_SUSPECT_AT = 2
"""Deaths after which an item is asked for alone; at one of them it may have been there by chance."""


def _tokens(sample: Row) -> str:
    return hash_of(sample["input_ids"])


class Blame:
    """The deaths of the servers of a run's stage, and who is to blame. ``tries``: deaths before an item may be. ``content``: a
    hash of what is asked for, of a sample its tokens."""

    def __init__(self, folder: Path, tries: int, content: Callable[[Row], str] = _tokens) -> None:
        self._path, self._tries, self._content = folder / NAME, tries, content
        try:
            self._rows = [row for row in read_whole_rows(self._path) if _whole(row)]
        except ValueError:  # a spoilt line: the others count, and the next row appended stands on a line of its own
            self._rows = [row for row in read_rows_past_torn(self._path) if _whole(row)]
            write_rows(self._path, self._rows)

    def died(self, in_flight: Sequence[Row], *, landed: int, attempt: int, now: float) -> bool:
        """Keep a death, at which these items were with the server. True where it makes one of them guilty and the server has
        worked since it died alone with another: then there is nothing wrong with the server."""
        if not in_flight:
            return False
        before = self.guilty(in_flight)
        worked = landed > self._landed_at_last_alone()
        told = [{"index": sample["index"], "id": sample["id"], "ids": self._content(sample)} for sample in in_flight]
        row = {"v": 1, "t": round(now, 3), "attempt": attempt, "landed": landed, "in_flight": told}
        with contextlib.suppress(OSError):  # on a full disk this attempt alone knows of it
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_row(self._path, row)
        self._rows.append(row)
        return worked and self.guilty(in_flight) != before

    def guilty(self, samples: Iterable[Row]) -> frozenset[int]:
        """Those of the items that the server dies of: with it at ``tries`` deaths, at one of them alone, though it works on
        others; or alone at two. Where nothing lands between two deaths it may be the server's own fault."""
        return frozenset(sample["index"] for sample in samples if self._is_guilty(sample))

    def suspects(self, samples: Iterable[Row]) -> list[Row]:
        """Those of the items that are to be asked for one at a time, those first that have been alone with no death."""
        least = min(_SUSPECT_AT, self._tries)
        return sorted((sample for sample in samples if self.deaths(sample) >= least), key=lambda sample: len(self._alone(sample)))

    def deaths(self, sample: Row) -> int:
        """Deaths at which this item was with the server."""
        return len(self._of(sample))

    def _is_guilty(self, sample: Row) -> bool:
        alone = self._alone(sample)
        if self.deaths(sample) < self._tries or not alone:
            return False
        return len(alone) >= _SUSPECT_AT or any(self._rows[number]["landed"] > self._landed_before(number) for number in alone)

    def _of(self, sample: Row) -> list[int]:
        """The numbers of the rows that name the item."""
        found = [number for number, row in enumerate(self._rows) if sample["index"] in _indices(row)]
        if not found:  # of nearly all items, which need not be hashed
            return []
        ids = self._content(sample)
        return [
            number
            for number in found
            if any(one["index"] == sample["index"] and one.get("ids") == ids for one in self._rows[number]["in_flight"])
        ]

    def _alone(self, sample: Row) -> list[int]:
        return [number for number in self._of(sample) if len(self._rows[number]["in_flight"]) == 1]

    def _landed_at_last_alone(self) -> int:
        return self._landed_before(len(self._rows))

    def _landed_before(self, number: int) -> int:
        """How many items were whole at the last death before this one at which an item was alone."""
        return next((row["landed"] for row in reversed(self._rows[:number]) if len(row["in_flight"]) == 1), 0)


def _indices(row: Row) -> Collection[int]:
    return {one["index"] for one in row["in_flight"]}


def _whole(row: Row) -> bool:
    told = row.get("in_flight")
    named = isinstance(told, list) and all(isinstance(one, dict) and isinstance(one.get("index"), int) for one in told)
    return named and isinstance(row.get("landed"), int)
