"""What the event of any guard must carry, whoever noticed: one shape, so that console and alerts need no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def of_guard(rows: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The events of the guard among ``rows``, each held against the one shape."""
    found = [row for row in rows if row["kind"] == f"guard-{name}"]
    for row in found:
        guard = row["guard"]
        assert set(guard) == {"name", "value", "threshold", "counts", "response", "action"}, guard
        assert guard["name"] == name and guard["response"] in ("warn", "pause", "stop")
        assert guard["counts"] and all(isinstance(number, (int, float)) for number in guard["counts"].values()), guard["counts"]
        assert guard["action"].endswith(".") and guard["action"] in row["text"], "the next step stands in the sentence"
        assert row["level"] == ("error" if guard["response"] == "stop" else "warn")
    return found


def the_guard(rows: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The one event of the guard."""
    (event,) = of_guard(rows, name)
    return event
