"""The picture of a run that the catalogue keeps, so that its plots can be opened when the container is gone: its rows thinned
as the container itself would thin them, its last events and its result, packed and bounded. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from eagle3.core.records import Event, MetricRow, Result
from tui.plotting.rows import number, spikes_kept

MOST_BYTES = 96 << 10
"""Of one run's picture, packed."""
MOST_ROWS = 1200
"""Of each stage and split at first; halved until the picture is small enough."""
EVENTS = 60
UNPACKED_LIMIT_BYTES = 8 << 20


@dataclass(frozen=True)
class Kept:
    """A picture as it comes back."""

    rows: list[MetricRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    result: Result | None = None


def thinned(rows: Sequence[MetricRow], most: int) -> list[MetricRow]:
    """At most about ``most`` rows of one stage and split, in the order of steps: of each stretch those of the smallest and the
    largest loss, and the first and the last of all."""
    rows = sorted(rows, key=lambda row: row.step)
    return [rows[place] for place in spikes_kept([number(row.loss) for row in rows], most)]


def pack(rows: Iterable[MetricRow], events: Iterable[Event], result: Result | None) -> bytes:
    """The picture in at most MOST_BYTES."""
    series: dict[tuple[str, str], list[MetricRow]] = {}
    for row in rows:
        series.setdefault((row.stage, row.split), []).append(row)
    told = [event.model_dump(mode="json", exclude_defaults=True) for event in list(events)[-EVENTS:]]
    most = MOST_ROWS
    while True:
        kept = [row for part in series.values() for row in thinned(part, most)]
        value = {
            "v": 1, "rows": [row.model_dump(mode="json", exclude_defaults=True) for row in kept], "events": told,
            "result": result and result.model_dump(mode="json"),
        }  # fmt: skip
        packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)
        if len(packed) <= MOST_BYTES or most < 8:
            return packed if len(packed) <= MOST_BYTES else zlib.compress(b"{}")
        most //= 2
        told = told[-EVENTS // 4 :]


def unpack(packed: bytes) -> Kept | None:
    """None where it cannot be understood: damaged, or written by another version."""
    unpacker = zlib.decompressobj()
    try:
        value = json.loads(unpacker.decompress(packed, UNPACKED_LIMIT_BYTES))
        if not unpacker.eof:
            return None  # cut, or larger than any picture
        return Kept(
            [MetricRow.model_validate(row) for row in value.get("rows", ())],
            [Event.model_validate(event) for event in value.get("events", ())],
            Result.model_validate(value["result"]) if value.get("result") else None,
        )
    except (zlib.error, ValueError, ValidationError, AttributeError, TypeError):
        return None
