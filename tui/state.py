"""What the console knows, each value with its "as of". Pure: no Textual, no clock of its own, no IO.

Two clocks meet here. ``at`` and ``now`` are this machine's Unix seconds; times in records are the container's. An age
is taken against the ``now`` that came in the same reply and then grows by what has passed here since, so a wrong clock
on either side does not show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from eagle3.core.run_states import LIVE_STATES, RESUMABLE_STATES
from tui.formats import clean_line
from tui.history import History
from tui.plotting.rows import Metrics

if TYPE_CHECKING:
    from eagle3.core.readiness.report import Report
    from eagle3.core.records import Event, Probe, Progress, Result, RunSummary
    from tui.keeping import Kept
    from tui.ports import BacklogView, LinkView, RunNewsView, ThinnedView
    from tui.reading import Reading

T = TypeVar("T")

LOG_LINES = 2000
"""Lines of a run's log kept here; the whole log stays in the container."""
EVENTS_KEPT = 200
STALE_POLLS = 3
"""After so many polls without an answer a value is stale."""


@dataclass
class Known(Generic[T]):
    """A value and when it was learnt; ``problem`` says why the last try to learn it failed."""

    value: T
    at: float | None = None
    problem: str = ""

    def age(self, now: float) -> float | None:
        """Seconds since it was learnt, or None where it never was."""
        return None if self.at is None else max(0.0, now - self.at)


@dataclass(frozen=True)
class LinkState:
    """A copy of the link as last told. ``since`` is this machine's Unix seconds."""

    status: str = "connecting"
    since: float = 0.0
    reason: str = ""

    @classmethod
    def of(cls, link: LinkView) -> LinkState:
        return cls(link.status, link.since, clean_line(link.reason))


@dataclass
class NotesView:
    """Notes as last read (``base``) and as typed here (``text``)."""

    base: str = ""
    text: str = ""
    at: float | None = None
    problem: str = ""
    not_saved: str = ""
    """Why the last save failed."""
    saving: str | None = None
    """The text on its way, None where nothing is being saved."""
    conflicts: int = 0

    @property
    def changed(self) -> bool:
        """Whether something was typed that is not saved."""
        return self.text != self.base

    def take(self, text: str, at: float, saved: bool, conflicts: int = 0) -> None:
        """What was read or saved. What was typed since stays, as an edit of what was sent."""
        self.at, self.problem = at, ""
        if saved and self.saving is not None:
            sent, self.saving, self.conflicts, self.not_saved = self.saving, None, conflicts, ""
            if self.text == sent:
                self.base = self.text = text
            else:
                self.base = sent
            return
        if not self.changed:
            self.base = self.text = text


@dataclass
class RunView:
    """Everything known of the run on the Run screen, gathered from increments."""

    run_id: str
    summary: RunSummary | None = None
    progress: Progress | None = None
    metrics: Metrics = field(default_factory=Metrics)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    log_seq: int = 0
    """Lines ever taken; with the deque's length it tells a reader which ones are new."""
    log_resets: int = 0
    result: Result | None = None
    thinned: ThinnedView | None = None
    """Set where the plots show only some rows of a long backlog."""
    all_rows_share: float | None = None
    """How much of all rows has been read on demand, 0 to 1; None where nobody asked for them."""
    log_skipped_bytes: int = 0
    """Bytes of the log before its first line here that stayed in the container."""
    kept_at: float | None = None
    """As of when the rows are that the catalogue kept; None once the container itself has told them."""
    heard: bool = False
    """Whether the run itself was read, not only its line in the list."""
    at: float | None = None
    problem: str = ""
    started_under: Report | None = None
    """The readiness report that the run was started under, once it was read."""
    report_words: str = ""
    """Why there is no such report, once that is known."""

    def take_report(self, text: str | None) -> None:
        """The run's ``report.json``; None where it has none."""
        self.started_under, self.report_words = None, "none was recorded"
        if text is not None and text.strip() not in ("", "null"):
            from eagle3.core.readiness.report import Report  # with pydantic: not before the first picture

            try:
                self.started_under, self.report_words = Report.model_validate_json(text), ""
            except ValueError:
                self.report_words = "report.json cannot be read by this console"

    def take(self, news: RunNewsView, at: float, fresh: bool = False) -> None:
        """Add what one poll brought, received ``at``. ``fresh``: every file is read from its beginning again."""
        self.at, self.problem, self.heard, self.kept_at = at, "", True, None
        if fresh or "metrics.jsonl" in news.reset:
            self.metrics.clear()
        if fresh or "events.jsonl" in news.reset:
            self.events.clear()
        if fresh or "run.log" in news.reset:
            self.log.clear()
            self.log_seq = 0
            self.log_resets += 1
        self.summary = news.summary
        self.progress = news.progress or news.summary.progress
        self.metrics.take(news.rows)
        if fresh or "metrics.jsonl" in news.reset:
            self.all_rows_share = None
        self.thinned = news.thinned if self.all_rows_share != 1.0 else None
        self.log_skipped_bytes = news.log_skipped_bytes
        self.events.extend(news.events)
        if news.log:
            self._take_log(news.log.split("\n"))
        self.result = news.result or self.result
        if news.summary.state in LIVE_STATES:
            # A resumed run: the verdict of an earlier attempt is no longer its verdict.
            self.result = news.result

    def take_kept(self, kept: Kept, at: float) -> None:
        """The picture that the catalogue kept, as of ``at``: for a container that has not answered yet, or never will."""
        if self.heard:
            return
        self.kept_at = at
        self.metrics.take(kept.rows)
        self.events.extend(kept.events)
        self.result = kept.result

    def take_rows(self, piece: BacklogView, first: bool) -> None:
        """A piece of all the rows; the last one makes the picture whole."""
        if first or piece.reset:
            self.metrics.clear()
        self.metrics.take(piece.rows)
        self.all_rows_share = piece.done_bytes / piece.total_bytes if piece.more and piece.total_bytes else 1.0
        if not piece.more:
            self.all_rows_share, self.thinned = 1.0, None

    def _take_log(self, lines: list[str]) -> None:
        if lines and not lines[-1]:
            lines.pop()
        self.log.extend(clean_line(line) for line in lines)
        self.log_seq += len(lines)

    def new_log(self, seen: int) -> Iterable[str]:
        """The lines after the first ``seen`` ones ever taken, as far as they are still kept."""
        fresh = min(self.log_seq - seen, len(self.log))
        return list(self.log)[-fresh:] if fresh > 0 else []

    @property
    def state(self) -> str:
        return self.summary.state if self.summary else "unknown"

    @property
    def ended(self) -> bool:
        return self.summary is not None and self.state not in LIVE_STATES

    @property
    def resumable(self) -> bool:
        return self.summary is not None and self.state in RESUMABLE_STATES

    @property
    def failure(self) -> Event | None:
        """The event that says why the run failed: the last error of the last attempt, but not the supervisor's word that
        it has ended, which comes after every cause."""
        if self.state not in {"failed", "lost", "unknown"} or self.summary is None:
            return None
        last = self.summary.attempt
        errors = [e for e in self.events if e.level == "error" and e.attempt == last and e.kind != "attempt_ended"]
        return errors[-1] if errors else None

    def age_of(self, t: float | None, now: float) -> float | None:
        """Age at ``now`` (this machine) of the container's time ``t``."""
        if t is None or self.summary is None or self.at is None:
            return None
        return max(0.0, self.summary.now - t + now - self.at)


@dataclass
class Console:
    """The whole of what is known about one host."""

    host: str
    poll_s: float = 5.0
    link: LinkState = field(default_factory=LinkState)
    probe: Known[Probe | None] = field(default_factory=lambda: Known(None))
    history: History = field(default_factory=History)
    workspace: str = ""
    """Of which workspace the last probe told, as it was asked for."""
    runs: dict[str, Known[RunSummary]] = field(default_factory=dict)
    gone: dict[str, Known[RunSummary]] = field(default_factory=dict)
    """Runs that were here once and are no longer: another container under the same name, or a folder that was removed."""
    runs_known: bool = False
    """Whether the host has said which runs there are; not so where only a shell could be asked."""
    open_run: RunView | None = None
    since: str = ""
    """What happened while nobody looked, until it is dismissed."""
    held: bool = False
    """Whether the operator holds the questions to the container back."""
    marked: list[str] = field(default_factory=list)
    """Runs marked for a comparison, in the order of marking."""
    reading: Reading | None = None
    """The log that is open, of the open run."""
    notes: dict[str, NotesView] = field(default_factory=dict)
    """Notes by run_id, the workspace's under ""; what was typed and not saved is in them."""
    launching: str = ""
    """run_id of the launch under way; a second one waits until it is answered."""

    def take_link(self, link: LinkView) -> None:
        self.link = LinkState.of(link)

    def enter(self, workspace: str) -> None:
        """What comes now is of ``workspace``: the runs of another one are not gone, they are elsewhere. Notes that were typed
        and not saved stay."""
        if self.workspace and workspace != self.workspace:
            self.runs, self.gone, self.marked = {}, {}, []
            self.notes = {run_id: view for run_id, view in self.notes.items() if view.changed}
        self.workspace = workspace

    def take_probe(self, probe: Probe, at: float) -> None:
        """A probe names every run of the workspace: what it does not name is gone."""
        self.probe = Known(probe, at)
        self.history.take(probe)
        self.take_runs(probe.runs, at)

    def take_bare(self, probe: Probe, at: float) -> None:
        """What a shell saw of a host without a usable Python. It cannot see runs, so what was known of them stays."""
        self.probe = Known(probe, at)

    def take_runs(self, runs: Iterable[RunSummary], at: float) -> None:
        self.runs_known = True
        before = self.gone | self.runs
        self.runs = {run.run_id: Known(run, at) for run in runs}
        self.gone = {run_id: known for run_id, known in before.items() if run_id not in self.runs}

    def remember(self, runs: Iterable[tuple[RunSummary, float]]) -> None:
        """Runs from the catalog, for before the first answer; each with when it was last seen."""
        for summary, seen_at in runs:
            self.runs.setdefault(summary.run_id, Known(summary, seen_at))

    def take_problem(self, text: str) -> None:
        """The last probe failed; what was known stays, with the reason."""
        self.probe.problem = clean_line(text)

    def watch(self, run_id: str) -> RunView:
        """The view of ``run_id``; a new one where another run was open."""
        if self.open_run is None or self.open_run.run_id != run_id:
            self.open_run = RunView(run_id)
            if known := self.runs.get(run_id) or self.gone.get(run_id):
                self.open_run.summary, self.open_run.at = known.value, known.at
                self.open_run.progress = known.value.progress
        return self.open_run

    def take_news(self, run_id: str, news: RunNewsView, at: float, fresh: bool = False) -> None:
        if self.open_run is not None and self.open_run.run_id == run_id:
            self.open_run.take(news, at, fresh)
        self.runs[run_id] = Known(news.summary, at)

    def stale(self, at: float | None, now: float, poll_s: float | None = None) -> bool:
        """Whether a value learnt ``at`` is older than three polls, or was never learnt; or so far in the future that this
        machine's clock was set back since, and nobody knows how old it is."""
        return at is None or abs(now - at) > STALE_POLLS * (poll_s or self.poll_s)

    def runs_by_age(self) -> list[Known[RunSummary]]:
        """Live runs first, then the newest."""
        return sorted(
            self.runs.values(),
            key=lambda known: (known.value.state not in LIVE_STATES, -(known.value.created_at or 0), known.value.run_id),
        )

    def shown_run(self, shown: str) -> str:
        """Whose log and notes are shown where ``shown`` are now: the open run's, else the same as long as there is that run,
        else the latest one's. A run that somebody else has just launched takes no page from under a reader."""
        if self.open_run is not None:
            return self.open_run.run_id
        return shown if shown in self.runs else self.latest_run()

    def latest_run(self) -> str:
        """The run that an unnamed request means: a live one, or the newest."""
        runs = self.runs_by_age()
        return runs[0].value.run_id if runs else ""


def run_age_s(summary: RunSummary, at: float | None, now: float) -> float | None:
    """Seconds that the run has lasted, all attempts together with the time between them: to its end, or to now."""
    start = summary.created_at or summary.started_at
    if start is None:
        return None
    if summary.ended_at is not None:
        return summary.ended_at - start
    return summary.now - start + (now - at if at is not None else 0.0)
