"""Samples that have no usable states, and why: put aside in ``states/quarantine.jsonl``, never left out without a word.

A row is ``{"index","id","split","tokens","reason","tries","attempt","t"}``. The file is replaced whole, so that a fork may know
it by another name; it is not there while nothing is put aside.
"""

from __future__ import annotations

from pathlib import Path

from eagle3.rows import Row, read_whole_rows, write_rows

NAME = "quarantine.jsonl"


class Quarantine:
    """The samples put aside, by index."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.rows: dict[int, Row] = {row["index"]: row for row in _read(self._path)}

    def put(self, sample: Row, reason: str, *, tries: int, attempt: int, now: float) -> None:
        """Put a sample aside: ``now`` in Unix seconds, ``attempt`` the run's."""
        self.rows[sample["index"]] = {
            "index": sample["index"], "id": sample["id"], "split": sample["split"], "tokens": len(sample["input_ids"]),
            "reason": reason[:500], "tries": tries, "attempt": attempt, "t": round(now, 3),
        }  # fmt: skip
        self.write()

    def clear(self) -> None:
        """Let all of them be tried again."""
        self.rows = {}
        self.write()

    def write(self) -> None:
        """Bring the file up to date."""
        if self.rows:
            write_rows(self._path, [self.rows[index] for index in sorted(self.rows)])
        else:
            self._path.unlink(missing_ok=True)

    def reasons(self, count: int = 3) -> str:
        """The first reasons in words."""
        first = sorted(self.rows)[:count]
        told = "; ".join(f"sample {index} ('{self.rows[index]['id']}'): {self.rows[index]['reason']}" for index in first)
        return told + (f"; and {len(self.rows) - count} more" if len(self.rows) > count else "")


def put_aside(run_dir: Path) -> frozenset[int]:
    """The indices of the samples of a run that have no states, so that nobody waits for them."""
    return frozenset(row["index"] for row in _read(run_dir / "states" / NAME))


def _read(path: Path) -> list[Row]:
    try:
        return [row for row in read_whole_rows(path) if isinstance(row.get("index"), int)]
    except ValueError:
        return []  # spoilt: its samples are asked for again
