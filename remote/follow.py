"""Turns increments of a run's files into typed news.

Pure: it is given replies of the verb ``read`` and keeps the tokens. Rows that a later attempt repeated are replaced, a row
is never told twice, and a line that cannot be read is counted, not fatal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from eagle3.core.records import Event, MetricRow, Progress, Record, Result, RunSummary
from remote.text import plain

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
LOG = "run.log"
PROGRESS = "progress.json"
RESULT = "result.json"
CHUNK_BYTES = 1 << 18

R = TypeVar("R", bound=Record)

ENDED_STATES = frozenset({"finished", "failed", "stopped", "lost", "unknown"})


class RowTable:
    """Metric rows, one for each (stage, split, step): the highest attempt's."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, int], MetricRow] = {}

    def add(self, rows: Iterable[MetricRow]) -> list[MetricRow]:
        """Take the rows in and return those that are news: not superseded, not there already."""
        news = []
        for row in rows:
            key = (row.stage, row.split, row.step)
            known = self._rows.get(key)
            if known is None or (row.attempt, row.seq) > (known.attempt, known.seq):
                self._rows[key] = row
                news.append(row)
        return news

    def clear(self) -> None:
        self._rows.clear()

    def __iter__(self) -> Iterator[MetricRow]:
        return iter(sorted(self._rows.values(), key=lambda row: (row.stage, row.split, row.step)))

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class RunNews:
    """What a poll brought. ``rows`` replace earlier ones of the same (stage, split, step); files named in ``reset``
    began anew, so what was shown of them is to be dropped first. ``now`` is the container's clock."""

    summary: RunSummary
    progress: Progress | None = None
    rows: list[MetricRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    log: str = ""
    reset: frozenset[str] = frozenset()
    result: Result | None = None
    now: float = 0.0
    unreadable: int = 0
    """Lines and files since the start of following that were not what they should be."""
    more: bool = False
    """There was more than fits one reply; the next news comes at once."""


class Follower:
    """The state of following one run. Ask with `request`, give the answer to `apply`."""

    def __init__(self) -> None:
        self.table = RowTable()
        self._tokens: dict[str, dict[str, Any] | None] = {METRICS: None, EVENTS: None, LOG: None}
        self._unreadable = 0

    def request(self) -> list[dict[str, Any]]:
        """The ``files`` argument of the next ``read``."""
        increments = [{"name": name, "token": token, "max_bytes": CHUNK_BYTES} for name, token in self._tokens.items()]
        return [*increments, {"name": PROGRESS, "whole": True}, {"name": RESULT, "whole": True}]

    def apply(self, result: dict[str, Any], now: float) -> RunNews:
        """Take in the result of a ``read``. Raises ValidationError where even the summary makes no sense."""
        files = result.get("files") or {}
        reset = frozenset(name for name in self._tokens if files.get(name, {}).get("reset"))
        if METRICS in reset:
            self.table.clear()
        for name in self._tokens:
            if name in files:
                self._tokens[name] = files[name].get("token")
        rows = list(self._records(MetricRow, files.get(METRICS, {})))
        return RunNews(
            summary=_clean_summary(result),
            progress=self._whole(Progress, files.get(PROGRESS, {})),
            rows=self.table.add(rows),
            events=[_clean_event(event) for event in self._records(Event, files.get(EVENTS, {}))],
            log=plain(str(files.get(LOG, {}).get("text") or "")),
            reset=reset,
            result=self._whole(Result, files.get(RESULT, {})),
            now=now,
            unreadable=self._unreadable,
            more=any(part.get("more") for part in files.values()),
        )

    def _records(self, shape: type[R], part: dict[str, Any]) -> Iterator[R]:
        for line in str(part.get("text") or "").split("\n"):
            if line.strip():
                record = self._parse(shape, line)
                if record is not None:
                    yield record

    def _whole(self, shape: type[R], part: dict[str, Any]) -> R | None:
        text = str(part.get("text") or "")
        return self._parse(shape, text) if text.strip() and not part.get("missing") else None

    def _parse(self, shape: type[R], text: str) -> R | None:
        try:
            return shape.model_validate(json.loads(text))
        except (ValueError, ValidationError):
            self._unreadable += 1
            return None


def _clean_summary(result: dict[str, Any]) -> RunSummary:
    summary = RunSummary.model_validate(result.get("summary") or {})
    return summary.model_copy(update={"state_text": plain(summary.state_text), "actor": plain(summary.actor)})


def _clean_event(event: Event) -> Event:
    return event.model_copy(update={"text": plain(event.text), "detail": plain(event.detail), "actor": plain(event.actor)})
