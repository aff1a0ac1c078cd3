"""A container in this process, fed by run directories: the console's side of the facade without a wire.

It fits ``tui.ports.ContainerPort``. Tests change the files and the switches (``down``, ``refuse``) and look at the screen.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eagle3.core.lineage import ForkPlan
from eagle3.core.records import (
    Disk,
    Event,
    Forkable,
    Gpu,
    GpuReport,
    LogFile,
    LogPage,
    LogSearch,
    MetricRow,
    NotesText,
    Pause,
    Probe,
    Progress,
    Result,
    RunSummary,
    Services,
    Since,
    VllmServer,
)  # fmt: skip
from eagle3.core.spec import RunSpec
from eagle3.runner import fork as forking
from eagle3.runner import logs, notes
from eagle3.runner.errors import VerbError
from remote.ask import Ask
from remote.deepcheck import Told
from remote.errors import ContainerError, LinkError
from remote.follow import Backlog, Thinned
from tests.tui.support.facts import facts
from tests.tui.support.folders import NOW, write_run
from tui.ports import OnLink, StopMode
from tui.state import LinkState

GIB = 1 << 30
NO_GPU = GpuReport(status="none", text="No NVIDIA driver was found.")


def eight_gpus() -> GpuReport:
    return GpuReport(
        status="ok", driver="570.124", gpus=[
            Gpu(index=k, name="NVIDIA H200", memory_total_bytes=141 * GIB, memory_used_bytes=(17 * k + 3) * GIB,
                utilization_pct=12.0 * k, temperature_c=40.0 + k, power_w=120.0 + 60 * k)
            for k in range(8)
        ],
    )  # fmt: skip


DISKS = [
    Disk(path="~/eagle3", mount="/", fstype="overlay", total_bytes=64 * GIB, free_bytes=37 * GIB, free_inodes=4_000_000),
    Disk(path="/dev/shm", mount="/dev/shm", fstype="tmpfs", total_bytes=12 * GIB, free_bytes=12 * GIB, free_inodes=3_000_000),
    Disk(path="/data", mount="/data", fstype="ext4", total_bytes=500 * GIB, free_bytes=9 * GIB, free_inodes=1200),
]
SERVERS = [
    VllmServer(url="http://127.0.0.1:8000", pid=4711, health="ok", models=["smollm2-135m"], running=2, waiting=0),
    VllmServer(url="http://127.0.0.1:8001", pid=4712, health="down", text="it does not answer"),
]


@dataclass
class News:
    summary: RunSummary
    progress: Progress | None = None
    rows: list[MetricRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    log: str = ""
    reset: frozenset[str] = frozenset()
    result: Result | None = None
    thinned: Thinned | None = None
    log_skipped_bytes: int = 0
    probe: Probe | None = None
    more: bool = False


class FakeContainer:
    """``launches``, ``stops`` record what was asked; a launch writes a run directory that runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gpu = NO_GPU
        self.disks = list(DISKS)
        self.servers = list(SERVERS)
        self.down = ""
        self.refuse = ""
        self.launch_problem: Exception | None = None
        self.lost_launches = 0
        self.secrets: dict[str, dict[str, str]] = {}
        self.launches: list[tuple[str, str, bool]] = []
        self.forks: list[tuple[str, str, ForkPlan]] = []
        self.reports: list[dict[str, Any] | None] = []
        self.known = facts()
        self.asked: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self.held: asyncio.Event | None = None
        self.deep: list[tuple[str, dict[str, Any]]] = []
        self.job_stopped = asyncio.Event()
        self.jobs: list[str] = []
        self.running_job = ""
        self.remedies: list[tuple[str, dict[str, Any], str]] = []
        self.preview: Callable[[dict[str, Any]], dict[str, Any]] = lambda args: {"items": [], "refused": [], "text": ""}
        self.stops: list[tuple[str, str]] = []
        self.controls: list[tuple[str, str]] = []
        self.since_asked: list[float] = []
        self.happened = Since()
        self.serving = Services()
        self.thinned: Thinned | None = None
        self.opened = 0
        self.closed = 0
        self.reconnects = 0
        self.watched: list[str] = []
        self.workspaces: list[str] = []
        self._link: LinkState = LinkState("connecting", NOW)
        self._on_link: OnLink = lambda link: None

    # the factory that the app is given
    def __call__(self, on_link: OnLink, ask: Ask, workspace: str) -> FakeContainer:
        self._on_link = on_link
        self.workspaces.append(workspace)
        return self

    @property
    def link(self) -> LinkState:
        return self._link

    def set_link(self, status: str, since: float = NOW, reason: str = "") -> None:
        self._link = LinkState(status, since, reason)
        self._on_link(self._link)

    def _check(self) -> None:
        """The link as the switches say; a change is told, as the real container does."""
        wanted, reason = ("refused", self.refuse) if self.refuse else ("down", self.down) if self.down else ("up", "")
        if wanted != self._link.status:
            self.set_link(wanted, NOW, reason)
        if reason:
            raise LinkError("refused" if self.refuse else "lost", reason)

    def reconnect(self) -> None:
        self.reconnects += 1

    def watch(self, run_id: str) -> None:
        self.watched.append(run_id)

    async def open(self, *, persist: bool = False) -> None:
        self.opened += 1
        self._check()

    async def close(self) -> None:
        self.closed += 1

    async def probe(self) -> Probe:
        self._check()
        return Probe(
            now=NOW,
            host={
                "hostname": "box",
                "os": "Debian 12",
                "cpus": 2,
                "load": [0.4],
                "memory_total_bytes": 24 * GIB,
                "memory_available_bytes": 20 * GIB,
            },
            gpu=self.gpu,
            disks=self.disks,
            vllm=self.servers,
            runs=await self.runs(),
        )

    async def runs(self) -> list[RunSummary]:
        self._check()
        return [self._summary(path.parent) for path in sorted(self.root.glob("*/summary.json"))]

    def _summary(self, run: Path) -> RunSummary:
        return RunSummary.model_validate_json((run / "summary.json").read_text())

    def update(self, run_id: str, **changes: Any) -> None:
        """Change what the runner would derive."""
        path = self.root / run_id / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    async def read_text(self, run_id: str, *names: str) -> dict[str, str | None]:
        self._check()
        files = {name: self.root / run_id / name for name in names}
        return {name: path.read_text() if path.exists() else None for name, path in files.items()}

    async def facts(self, wants: Mapping[str, Any], sections: Sequence[str] | None = None) -> dict[str, Any]:
        """What ``known`` holds; with ``held`` not before that is set."""
        self.asked.append((dict(wants), tuple(sections or ())))
        if self.held is not None:
            await self.held.wait()
        self._check()
        kept = {"now", "local_now", "round_trip_s", *(sections or self.known)}
        return {key: value for key, value in copy.deepcopy(self.known).items() if key in kept}

    async def launch(
        self,
        spec: RunSpec,
        run_id: str,
        actor: str = "",
        resume: bool = False,
        *,
        report: dict[str, Any] | None = None,
        secret_env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        self._check()
        self.reports.append(report)
        self.secrets[run_id] = dict(secret_env or {})
        if self.launch_problem is not None:
            raise self.launch_problem
        already = (self.root / run_id).exists() and not resume
        self.launches.append((run_id, spec.size, resume))
        if resume:
            self.update(run_id, state="running", attempt=2, ended_at=None)
        elif not already:
            run = write_run(self.root, run_id, steps=3)
            if report is not None:
                (run / "report.json").write_text(json.dumps(report))
        if self.lost_launches:
            self.lost_launches -= 1
            raise LinkError("lost", "The connection was lost.")
        return {"run_id": run_id, "run_dir": str(self.root / run_id), "attempt": 1, "already": already, "state": "running"}

    async def stop(self, run_id: str, mode: StopMode = "now", actor: str = "") -> dict[str, Any]:
        self._check()
        self.stops.append((run_id, mode))
        self.update(run_id, state="stopped", ended_at=NOW)
        return {}

    async def log_files(self, run_id: str) -> list[LogFile]:
        return [LogFile.model_validate(file) for file in self._log(run_id, "files")["files"]]

    async def log_page(self, run_id: str, name: str, at: int | Literal["end"], before: int = 0, after: int = 0) -> LogPage:
        return LogPage.model_validate(self._log(run_id, "page", name=name, at=at, before=before, after=after))

    async def log_search(self, run_id: str, name: str, pattern: str, *, ignore_case: bool = True, at: int = 0) -> LogSearch:
        return LogSearch.model_validate(self._log(run_id, "search", name=name, pattern=pattern, ignore_case=ignore_case, at=at))

    async def log_time(self, run_id: str, name: str, text: str) -> int:
        return int(self._log(run_id, "time", name=name, text=text)["at"])

    def _log(self, run_id: str, op: str, **args: Any) -> dict[str, Any]:
        """By the runner itself: its answers are what the screen has to make sense of."""
        self._check()
        try:
            return logs.log(self.root / run_id, op, args)
        except VerbError as error:
            raise ContainerError(error.code, error.text, error.remedy) from error

    async def notes(self, run_id: str = "") -> NotesText:
        self._check()
        return NotesText.model_validate(notes.notes(self.root / run_id, "read", {}))

    async def save_notes(self, base: str, text: str, run_id: str = "") -> NotesText:
        self._check()
        return NotesText.model_validate(notes.notes(self.root / run_id, "write", {"base": base, "text": text}))

    async def add_note(self, line: str, run_id: str = "") -> NotesText:
        self._check()
        return NotesText.model_validate(notes.notes(self.root / run_id, "append", {"line": line}))

    async def forkable(self, run_id: str) -> Forkable:
        self._check()
        return Forkable.model_validate(
            forking.forkable(self.root / run_id) | {"stages": [*self._summary(self.root / run_id).stages]}
        )

    async def fork(self, run_id: str, new_id: str, spec: RunSpec, plan: ForkPlan, actor: str = "") -> dict[str, Any]:
        self._check()
        self.forks.append((run_id, new_id, plan))
        return {"run_id": new_id, "already": False}

    async def control(
        self, run_id: str, action: Literal["pause", "go-on", "checkpoint"], actor: str = "", *, lift: Sequence[Pause] = ()
    ) -> dict[str, Any]:
        self._check()
        self.controls.append((run_id, action))
        before = self._summary(self.root / run_id).paused
        left = [pause for pause in before if pause not in lift] if action == "go-on" else before
        already = action == "pause" and any(not pause.guard for pause in before)
        if action == "pause" and not already:
            left = [*before, Pause(by=actor, t=NOW)]
        first = left[0] if left else None
        held = [pause.model_dump() for pause in left]
        self.update(run_id, paused=held, paused_by=first and first.by, paused_at=first and first.t)
        told = {"lifted": [pause.model_dump() for pause in lift], "held": held}
        return {"run_id": run_id, "action": action, "stage": "train", "already": already, **told}

    async def dump(self, run_id: str, actor: str = "") -> dict[str, Any]:
        self._check()
        self.controls.append((run_id, "dump"))
        return {"text": "The stacks of 2 processes are in the log."}

    async def services(self) -> Services:
        self._check()
        return self.serving

    async def complete(self, run_id: str) -> AsyncGenerator[Backlog, None]:
        self._check()
        text = (self.root / run_id / "metrics.jsonl").read_text()
        rows = [MetricRow.model_validate_json(line) for line in text.splitlines()]
        half = len(rows) // 2
        for part, done in ((rows[:half], 1), (rows[half:], 2)):
            yield Backlog(part, done, 2, False, done == 1, None, 0)

    async def since(self, t: float) -> Since:
        self._check()
        self.since_asked.append(t)
        return self.happened

    async def follow(self, run_id: str, poll_s: float = 1.0, probe_s: float | None = None) -> AsyncGenerator[News, None]:
        seen = {"metrics.jsonl": 0, "events.jsonl": 0, "run.log": 0}
        while True:
            self._check()
            run = self.root / run_id
            if not run.exists():
                raise ContainerError("not_found", f"There is no run called '{run_id}'.", "Press 5 to see the runs.")
            new = {}
            for name in seen:
                text = (run / "attempts/1/run.log" if name == "run.log" else run / name).read_bytes().decode()
                new[name], seen[name] = text[seen[name] :], len(text)
            result = run / "result.json"
            news = News(
                self._summary(run),
                Progress.model_validate_json((run / "progress.json").read_text()),
                [MetricRow.model_validate_json(line) for line in new["metrics.jsonl"].splitlines()],
                [Event.model_validate_json(line) for line in new["events.jsonl"].splitlines()],
                new["run.log"],
                frozenset(),
                Result.model_validate_json(result.read_text()) if result.exists() else None,
                self.thinned,
            )
            if self.thinned is not None:  # what came with the first news of a long run
                news.rows = news.rows[:: max(1, self.thinned.rows // self.thinned.kept)]
            yield news
            if news.summary.state in {"finished", "failed", "stopped"}:
                return
            await asyncio.sleep(0.05)

    async def deep_check(
        self, wants: Mapping[str, Any], spec: RunSpec | None = None, *, check_id: str = ""
    ) -> AsyncIterator[Told]:
        """What ``deep`` holds; with ``held`` not before that is set, or until it is stopped."""
        self.asked.append((dict(wants), ("deep", *wants.get("sections", ()))))
        if self.running_job:
            raise ContainerError("busy", "A deep check runs in this workspace already.", "Wait.", self.running_job)
        async for line in self.follow_job(check_id):
            yield line

    async def follow_job(self, check_id: str) -> AsyncIterator[Told]:
        self.jobs.append(check_id)
        self.job_stopped.clear()
        for section, value in self.deep:
            yield Told(section, more={"doing": section, "limit_s": 120.0})
            if self.held is not None:
                waits = [asyncio.create_task(event.wait()) for event in (self.held, self.job_stopped)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in waits:
                    task.cancel()
            if self.job_stopped.is_set():
                yield Told(text="It was stopped.")
                return
            self._check()
            yield Told(section, copy.deepcopy(value))

    async def stop_check(self, check_id: str) -> dict[str, Any]:
        self._check()
        self.job_stopped.set()
        return {"check_id": check_id}

    async def remedy(self, action: str, args: Mapping[str, Any], *, token: str = "") -> dict[str, Any]:
        """A preview out of ``preview`` (called with the arguments), or the act."""
        self._check()
        self.remedies.append((action, dict(args), token))
        return {"done": [], "left": [], "text": "It is done."} if token else self.preview(dict(args))
