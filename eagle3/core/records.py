"""What crosses from a run to its readers: the shapes of the files in the run directory and of the helper
channel's replies, as the console reads them.

Unknown fields are ignored and missing ones have defaults, so a newer or older container can still be read.
All times ``t`` are Unix seconds by the container's clock; ages are computed against the ``now`` that came in
the same reply, never against the reader's clock.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from eagle3.core.run_states import RunState


class Record(BaseModel):
    # Built at first use: importing all of them costs a console a fifth of a second before its first picture.
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Progress(Record):
    """``progress.json``: where the worker is. ``rate`` is units per second; ``eta_s`` is of the stage."""

    v: int = 1
    attempt: int = 1
    stage: str = ""
    done: float = 0
    total: float | None = None
    unit: str = ""
    rate: float | None = None
    eta_s: float | None = None
    t: float = 0.0
    quiet_until: float | None = None
    reason: str = ""


class MetricRow(Record):
    """A line of ``metrics.jsonl``. ``acc_pos[k]`` is the joint probability that the first k+1 draft tokens are
    right; ``accept_len = 1 + sum(acc_pos)``. ``split`` tells training rows from held-out ("val") ones. Rows of
    stage "train" are simulated figures; "served" ones come from vLLM's counters in stage "evaluate". ``data_wait_s``: how
    long the step waited for its samples."""

    v: int = 1
    attempt: int = 1
    seq: int = 0
    t: float = 0.0
    stage: str = ""
    split: str = "train"
    step: int = 0
    loss: float | None = None
    loss_pos: list[float | None] = Field(default_factory=list)
    acc_pos: list[float | None] = Field(default_factory=list)
    accept_len: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tok_s: float | None = None
    data_wait_s: float | None = None


_GUARDS_BEFORE = {"stalled": "stall", "server-died": "server", "disk_low": "disk"}


class Event(Record):
    """A line of ``events.jsonl``: something worth telling a person. ``level`` is info, warn or error."""

    v: int = 1
    attempt: int = 1
    t: float = 0.0
    kind: str = ""
    level: str = "info"
    actor: str = ""
    text: str = ""
    detail: str = ""
    step: int | None = Field(None, description="the step of training that it is about")
    guard: dict[str, Any] | None = Field(None, description="name, value, threshold, counts, response and action of a guard")

    @property
    def guard_name(self) -> str:
        """The guard that this tells of; empty where it is none. Runs of older versions had other kinds for three of them."""
        return self.kind[len("guard-") :] if self.kind.startswith("guard-") else _GUARDS_BEFORE.get(self.kind, "")


class StageRecord(Record):
    """``stages/<name>.json``: a finished stage, and what lets a resume skip it."""

    v: int = 1
    stage: str = ""
    attempt: int = 1
    inputs: str = ""
    outputs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    figures: dict[str, Any] = Field(default_factory=dict)
    seconds: float = 0.0
    begun_before: bool = Field(False, description="an earlier attempt had begun it, so that `seconds` are not the whole of it")
    t: float = 0.0


class YieldedService(Record):
    """A service that a run had stopped, with whose consent. ``state``: stopped, restored, running already (somebody else
    has started it), failed (to start again; ``text`` says why), or handed over (to a later attempt)."""

    name: str
    state: str = "stopped"
    text: str = ""
    consented_by: str = ""
    consent: str = ""
    attempt: int = 1
    t: float | None = None


class Pause(Record):
    """What holds a live run: a person who paused it, or a guard that tripped (``guard``: its name; ``by`` in words)."""

    by: str = ""
    t: float = 0.0
    guard: str = ""


class RunSummary(Record):
    """One run as the runner derives it from its directory (verbs ``list``, ``probe``, ``read``)."""

    run_id: str
    run_dir: str = ""
    state: RunState = "unknown"
    state_text: str = ""
    attempt: int = 0
    label: dict[str, str] = Field(default_factory=dict)
    actor: str = ""
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    stop_mode: str | None = None
    stop_by: str | None = None
    paused_by: str | None = None
    paused_at: float | None = Field(None, description="since when it is paused, Unix seconds, by whoever was the first")
    paused: list[Pause] = Field(default_factory=list, description="everybody who holds it, the first first")
    last_row_age_s: float | None = None
    progress: Progress | None = None
    stages: dict[str, float] = Field(default_factory=dict, description="finished stages and their seconds")
    services: list[YieldedService] = Field(default_factory=list)
    now: float = 0.0

    def pauses_to_lift(self) -> list[Pause]:
        """What one "go on" of a person ends: the pauses of people; where there is none, those of guards. So neither ends
        unnoticed with the other."""
        return [pause for pause in self.paused if not pause.guard] or list(self.paused)


class Gpu(Record):
    index: int
    name: str = ""
    uuid: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_uncorrected: int | None = Field(None, description="volatile: since the driver was loaded")
    ecc_corrected: int | None = None
    remap_pending: bool | None = Field(None, description="rows of memory wait to be remapped; a reset of the GPU does it")
    remap_failed: bool | None = None
    retired_pending: bool | None = Field(None, description="pages of memory wait to be retired (older cards)")
    throttle: list[str] | None = Field(None, description="what slows the clocks, in words; empty: nothing does")
    lost: bool = Field(False, description="the driver says that the card is lost")
    processes: list[dict[str, Any]] = Field(default_factory=list)


class GpuReport(Record):
    """``status``: ok, none (there is no GPU or no driver), or unknown (asking failed; ``text`` says how)."""

    status: Literal["ok", "none", "unknown"] = "unknown"
    text: str = ""
    source: str = ""
    driver: str = ""
    gpus: list[Gpu] = Field(default_factory=list)


class Disk(Record):
    path: str
    mount: str = ""
    fstype: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    read_only: bool = False
    error: str = ""


class VllmServer(Record):
    """A vLLM server seen in the container. ``health``: ok, down (it does not answer or answers an error), or
    unknown. It says what ``/health`` said, not that tokens flow."""

    url: str
    pid: int | None = None
    run_id: str = ""
    health: Literal["ok", "down", "unknown"] = "unknown"
    models: list[str] = Field(default_factory=list)
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = Field(None, description="share from 0 to 1; of several engines the fullest")
    prompt_tokens: float | None = Field(None, description="since it started, as the next ones")
    generation_tokens: float | None = None
    drafts: float | None = None
    accepted_tokens: float | None = None
    accepted_per_pos: list[float] = Field(default_factory=list)
    extracting: bool | None = Field(None, description="in extraction mode its acceptance says nothing")
    text: str = ""


class Watcher(Record):
    """Somebody whose helper lives in the container. ``watching`` is a run id, or empty for the workspace; ``since`` is
    Unix seconds by the container's clock."""

    actor: str
    since: float = 0.0
    last_seen_age_s: float | None = None
    watching: str = ""
    host: str = ""
    pid: int | None = None


class Happening(Record):
    """Something that happened to a run of the workspace, and who did it."""

    t: float
    run_id: str
    kind: str = ""
    level: str = "info"
    actor: str = ""
    text: str = ""


class Forkable(Record):
    """The reply of the verb ``forkable``: what there is of a run to fork from. ``checkpoints``: steps, ascending;
    ``secret_env``: names of the secrets that it was started with; ``states_missing``: hidden states pruned or gone."""

    run_id: str = ""
    stages: list[str] = Field(default_factory=list)
    checkpoints: list[int] = Field(default_factory=list)
    spec_toml: str = ""
    secret_env: list[str] = Field(default_factory=list)
    states_missing: int = 0


class Since(Record):
    """The reply of the verb ``since``: what happened after ``t``, the newest last; ``left_off`` counts older ones that did
    not fit. ``runs`` tells how each run concerned stands now (some fields of `RunSummary`)."""

    t: float = 0.0
    now: float = 0.0
    happenings: list[Happening] = Field(default_factory=list)
    left_off: int = 0
    runs: list[dict[str, Any]] = Field(default_factory=list)


class Service(Record):
    """A vLLM found by its systemd unit or in the process table. ``command`` and ``environment`` come without their secrets;
    ``since`` is when it came into its ``state``, in Unix seconds."""

    kind: Literal["unit", "process"]
    name: str
    unit: str = ""
    pid: int | None = None
    user: str = ""
    state: str = ""
    live: bool = False
    since: float | None = None
    url: str = ""
    command: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)
    run_id: str = ""
    text: str = ""


class Services(Record):
    """The reply of the verb ``service``. ``systemd`` is empty where systemd answers, else why it does not."""

    systemd: str = ""
    services: list[Service] = Field(default_factory=list)


class Probe(Record):
    """The reply of the verb ``probe``: everything Overview shows, in one round trip."""

    now: float = 0.0
    host: dict[str, Any] = Field(default_factory=dict)
    gpu: GpuReport = Field(default_factory=GpuReport)
    disks: list[Disk] = Field(default_factory=list)
    vllm: list[VllmServer] = Field(default_factory=list)
    runs: list[RunSummary] = Field(default_factory=list)
    rates: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="what the workspace's runs have measured, for ``core.rates.known``"
    )
    watchers: list[Watcher] = Field(default_factory=list)


class LogFile(Record):
    """A log of a run: its name inside the run directory, its size, and when it was last written."""

    name: str
    bytes: int = 0
    t: float = 0.0


class LogLine(Record):
    """A line of a log. ``at`` is the byte where it begins, ``chars`` its length before it was cut for the reply."""

    at: int
    text: str = ""
    chars: int = 0


class LogPage(Record):
    """Lines of a log from byte ``start`` up to ``end`` of ``size``; ``t`` is when the log was last written."""

    lines: list[LogLine] = Field(default_factory=list)
    start: int = 0
    end: int = 0
    size: int = 0
    t: float = 0.0


class LogSearch(Record):
    """Where a pattern is found: ``total`` lines, ``index`` of them before the place asked from, and the offsets of those
    next to it on both sides. ``levels`` counts the whole log's lines by level."""

    total: int = 0
    index: int = 0
    before: list[int] = Field(default_factory=list)
    after: list[int] = Field(default_factory=list)
    levels: dict[str, int] = Field(default_factory=dict)
    scanned: int = 0


class NotesText(Record):
    """NOTES.md of a run or a workspace. After a save ``merged`` says that others had written meanwhile, and
    ``conflicts`` in how many places both sides had changed the same lines (both versions stay)."""

    text: str = ""
    t: float | None = None
    merged: bool = False
    conflicts: int = 0


class Result(Record):
    """``result.json``, and the last line of ``make demo``."""

    v: int = 1
    run_id: str = ""
    run_dir: str = ""
    state: str = ""
    wall_s: float = 0.0
    stages: dict[str, float] = Field(default_factory=dict)
    val: dict[str, Any] = Field(default_factory=dict)
    untrained: dict[str, Any] = Field(default_factory=dict)
    served: dict[str, Any] = Field(default_factory=dict)
    lossless: dict[str, Any] = Field(default_factory=dict)
    kinds: dict[str, dict[str, Any]] = Field(default_factory=dict, description="served acceptance by kind of prompt")
    curve: list[dict[str, Any]] = Field(default_factory=list, description="speeds by requests in flight, ascending")
    temperatures: list[dict[str, Any]] = Field(default_factory=list, description="served acceptance where it is sampled")
    published: dict[str, Any] = Field(default_factory=dict, description="beside drafts of others for this target, reported")
    verdict: str = ""
    verdict_text: str = ""
    thresholds: dict[str, Any] = Field(default_factory=dict)
    forked_from: str = ""
    estimate: dict[str, Any] = Field(default_factory=dict, description="how far off the estimate was: actual/estimated by stage")
