"""Turns the replies of a poll into typed news.

Pure: it is given replies of the verb ``poll`` and keeps the tokens. Rows that a later attempt repeated are replaced, a row
is never told twice, and a line that cannot be read is counted, not fatal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from eagle3.core.records import Event, MetricRow, Probe, Progress, Record, Result, RunSummary
from eagle3.runner.delta import Held
from eagle3.runner.polling import aged, aged_probe
from remote.text import plain

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
LOG = "run.log"
RESULT = "result.json"
CHUNK_BYTES = 1 << 18
THIN_ROWS = 1000
"""What a first picture keeps of a long backlog for each kind of row; a plot shows some hundred points."""
LOG_TAIL_BYTES = 1 << 18
"""How much of a log is told at first; what lies before it comes on demand."""

R = TypeVar("R", bound=Record)

ENDED_STATES = frozenset({"finished", "failed", "stopped", "lost", "unknown"})


class Told:
    """Which metric rows were told: of each stage and split the newest, by attempt, number and step, and how many in all. The
    rows themselves are the listener's: kept here too, a million of them took 2.2 GB of a console that is open for days."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[int, int, int]] = {}
        self.count = 0

    def news(self, rows: Iterable[MetricRow]) -> list[MetricRow]:
        """Those of ``rows``, in the order in which they were written, that were not told and that no later attempt supersedes."""
        found = []
        for row in rows:
            attempt, seq, step = self._newest.get((row.stage, row.split), (-1, -1, -1))
            if row.attempt > attempt or (row.attempt == attempt and (row.seq > seq or row.step > step)):
                self._newest[row.stage, row.split] = (row.attempt, row.seq, row.step)
                found.append(row)
        self.count += len(found)
        return found

    def clear(self) -> None:
        self._newest.clear()
        self.count = 0


@dataclass(frozen=True)
class Thinned:
    """The picture is made of ``kept`` of ``rows`` rows: for each stretch of the file those
    of the smallest and the largest loss, and the first and last of each attempt. ``hasty``: some were not looked at."""

    rows: int
    kept: int
    hasty: bool = False


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
    thinned: Thinned | None = None
    """Set while what was told of the rows is thinned; `Container.complete` brings them all."""
    log_skipped_bytes: int = 0
    """Bytes of the log before the first one told; `Container.log_page` brings them."""
    probe: Probe | None = None
    """The container itself, where it was asked for and has answered."""


@dataclass(frozen=True)
class Backlog:
    """A piece of all rows. ``done_bytes`` of ``total_bytes`` of the file have come; ``reset``: it began anew meanwhile, and
    what came before is to be dropped."""

    rows: list[MetricRow]
    done_bytes: int
    total_bytes: int
    reset: bool
    more: bool
    token: dict[str, Any] | None
    unreadable: int

    @classmethod
    def of(cls, part: dict[str, Any], unreadable: int) -> Backlog:
        """From an increment; ``unreadable`` counts the lines before it that could not be read."""
        rows, bad = parse_lines(MetricRow, str(part.get("text") or ""))
        done = int((part.get("token") or {}).get("offset") or 0)
        total = done + int(part.get("left_bytes") or 0)
        return cls(rows, done, total, bool(part.get("reset")), bool(part.get("more")), part.get("token"), unreadable + bad)


class Follower:
    """The state of following one run. Ask with `request`, give the answer to `apply`.

    ``thin_rows`` and ``tail_bytes`` bound what a long backlog brings at first; 0: all of it.
    """

    def __init__(self, thin_rows: int = THIN_ROWS, tail_bytes: int = LOG_TAIL_BYTES) -> None:
        self._told = Told()
        self._options: dict[str, dict[str, Any]] = {
            METRICS: {"max_bytes": CHUNK_BYTES, "thin": thin_rows},
            EVENTS: {"max_bytes": CHUNK_BYTES},
            LOG: {"max_bytes": CHUNK_BYTES, "tail_bytes": tail_bytes},
            RESULT: {"whole": True},
        }
        self._tokens: dict[str, dict[str, Any] | None] = dict.fromkeys(self._options)
        self._summary = Held()
        self._probe = Held()
        self._result: Result | None = None
        self._thinned: Thinned | None = None
        self._log_skipped_bytes = 0
        self._unreadable = 0

    def request(self, probe: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The arguments of the next ``poll``. ``probe`` ("paths", "urls") asks for the container too."""
        files = [{"name": name, "token": self._tokens[name], **options} for name, options in self._options.items()]
        asked: dict[str, Any] = {"files": files, "held": self._summary.token}
        return asked if probe is None else {**asked, "probe": {**probe, "held": self._probe.token}}

    def apply(self, result: dict[str, Any], now: float) -> RunNews:
        """Take in the result of a ``poll``. Raises ValueError where it makes no sense; asking again is then safe."""
        summary = _clean_summary(aged(self._summary.take(result.get("summary") or {}), now))
        container = taken_probe(self._probe, result.get("probe"))
        files = result.get("files") or {}
        reset = frozenset(name for name in self._tokens if files.get(name, {}).get("reset"))
        for name, part in files.items():
            if "token" in part or part.get("missing"):
                self._tokens[name] = part.get("token")
        return RunNews(
            summary=summary,
            progress=summary.progress,
            rows=self._rows(files.get(METRICS, {})),
            events=[_clean_event(event) for event in self._records(Event, files.get(EVENTS, {}))],
            log=self._log(files.get(LOG, {})),
            reset=reset - {RESULT},
            result=self._latest_result(files.get(RESULT, {})),
            now=now,
            unreadable=self._unreadable,
            more=any(part.get("more") for part in files.values()),
            thinned=self._thinned,
            log_skipped_bytes=self._log_skipped_bytes,
            probe=container,
        )

    def _rows(self, part: dict[str, Any]) -> list[MetricRow]:
        if part.get("reset"):
            self._told.clear()
            self._thinned = None
        rows = self._records(MetricRow, part)
        if thinned := part.get("thinned"):
            rows = sorted(latest_only(rows), key=lambda row: (row.attempt, row.seq))
            before = self._thinned or Thinned(self._told.count, self._told.count)
            hasty = before.hasty or bool(thinned.get("hasty"))
            self._thinned = Thinned(before.rows + int(thinned["rows"]), before.kept + len(rows), hasty)
        elif self._thinned is not None:
            self._thinned = replace(self._thinned, rows=self._thinned.rows + len(rows), kept=self._thinned.kept + len(rows))
        return self._told.news(rows)

    def _log(self, part: dict[str, Any]) -> str:
        if part.get("reset") or "skipped_bytes" in part:
            self._log_skipped_bytes = int(part.get("skipped_bytes") or 0)
        return plain(str(part.get("text") or ""))

    def _latest_result(self, part: dict[str, Any]) -> Result | None:
        if part:
            self._result = self._whole(Result, part)
        return self._result

    def _records(self, shape: type[R], part: dict[str, Any]) -> list[R]:
        records, bad = parse_lines(shape, str(part.get("text") or ""))
        self._unreadable += bad
        return records

    def _whole(self, shape: type[R], part: dict[str, Any]) -> R | None:
        text = str(part.get("text") or "").strip()
        records, bad = ([], 0) if part.get("missing") else parse_lines(shape, text.replace("\n", " "))
        self._unreadable += bad
        return records[0] if records else None


def parse_lines(shape: type[R], text: str) -> tuple[list[R], int]:
    """The records of a text of JSON lines, and how many of its lines are none."""
    records: list[R] = []
    bad = 0
    for line in text.split("\n"):
        if line.strip():
            try:
                records.append(shape.model_validate(json.loads(line)))
            except (ValueError, RecursionError):
                bad += 1
    return records, bad


def taken_probe(held: Held, answer: dict[str, Any] | None) -> Probe | None:
    """The probe after a poll's ``answer``; None where it brought none. Raises ValueError where it does not fit."""
    return None if answer is None else Probe.model_validate(aged_probe(held.take(answer), float(answer["now"])))


def latest_only(rows: list[MetricRow]) -> list[MetricRow]:
    """Thinned rows less those that a later attempt repeated: the steps need not match any more, so its range decides."""
    ranges: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
    for row in rows:
        attempts = ranges.setdefault((row.stage, row.split), {})
        low, high = attempts.get(row.attempt, (row.step, row.step))
        attempts[row.attempt] = (min(low, row.step), max(high, row.step))

    def repeated(row: MetricRow) -> bool:
        attempts = ranges[row.stage, row.split]
        return any(later > row.attempt and low <= row.step <= high for later, (low, high) in attempts.items())

    return [row for row in rows if not repeated(row)]


def _clean_summary(found: dict[str, Any]) -> RunSummary:
    summary = RunSummary.model_validate(found)
    return summary.model_copy(update={"state_text": plain(summary.state_text), "actor": plain(summary.actor)})


def _clean_event(event: Event) -> Event:
    return event.model_copy(update={"text": plain(event.text), "detail": plain(event.detail), "actor": plain(event.actor)})
