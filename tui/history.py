"""The last minutes of a machine, from one probe after another: how busy its GPUs were, how fast its disks fill, how many
tokens its servers gave and how well they speculated. Pure: times come with the probes, by the container's clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tui.plotting.series import thin

if TYPE_CHECKING:
    from eagle3.core.records import Disk, Probe, VllmServer

KEPT = 240
TRAIL_KEPT = 1600
"""Samples of a trail at most: a probe every five seconds for two hours, thinned from there on."""
WINDOW_S = 60.0
"""Rates of a server are over the last minute."""
DISK_WINDOW_S = 900.0
LEAST_DISK_S = 180.0
"""A disk's rate of change over less than this is noise: one checkpoint would make it full within the hour."""
SPARKS = " ▁▂▃▄▅▆▇█"

Sample = tuple[float, float]


@dataclass(frozen=True)
class Rates:
    """What a server did over the last minute. ``accept_len`` and ``acc_pos`` are served figures, by its own counters; None
    where it does not speculate, and in extraction mode, where every fake draft counts as accepted."""

    tok_s: float | None = None
    prompt_tok_s: float | None = None
    drafts: float = 0.0
    accept_len: float | None = None
    acc_pos: tuple[float, ...] = ()


@dataclass
class Trail:
    """All samples since the first one, in bounded room: where there are too many, each stretch keeps its smallest and its
    largest, so that a spike of days ago is still seen."""

    samples: list[Sample] = field(default_factory=list)

    def add(self, t: float, value: float) -> None:
        """Add a sample; one that is not newer than the last is left out."""
        if self.samples and t <= self.samples[-1][0]:
            return
        self.samples.append((t, value))
        if len(self.samples) > TRAIL_KEPT:
            # The newest quarter stays whole.
            old, new = self.samples[: -TRAIL_KEPT // 4], self.samples[-TRAIL_KEPT // 4 :]
            self.samples = [*thin(old, TRAIL_KEPT // 8), *new]


@dataclass
class History:
    used: dict[int, Trail] = field(default_factory=dict)
    """Memory in use by GPU, bytes, for as long as this console watches."""
    work: dict[int, Trail] = field(default_factory=dict)
    """Utilisation by GPU, percent."""
    room: dict[str, Trail] = field(default_factory=dict)
    """Free bytes by mount."""
    watched: int = 0
    """Probes taken; counts changes."""
    busy: dict[int, deque[Sample]] = field(default_factory=dict)
    """(t, utilisation in percent) by GPU."""
    free: dict[str, deque[Sample]] = field(default_factory=dict)
    """(t, free bytes) by mount."""
    mean: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    """(t, mean utilisation in percent) over all GPUs that told theirs."""
    servers: dict[str, deque[tuple[float, VllmServer]]] = field(default_factory=dict)

    def take(self, probe: Probe) -> None:
        """Add what one probe saw."""
        self.watched += 1
        told = [gpu.utilization_pct for gpu in probe.gpu.gpus if gpu.utilization_pct is not None]
        if told:
            self.mean.append((probe.now, sum(told) / len(told)))
        for gpu in probe.gpu.gpus:
            if gpu.memory_used_bytes is not None:
                self.used.setdefault(gpu.index, Trail()).add(probe.now, float(gpu.memory_used_bytes))
            if gpu.utilization_pct is not None:
                self.work.setdefault(gpu.index, Trail()).add(probe.now, gpu.utilization_pct)
            if gpu.utilization_pct is not None:
                _ring(self.busy, gpu.index).append((probe.now, gpu.utilization_pct))
        for disk in probe.disks:
            if disk.free_bytes is not None:
                _ring(self.free, key_of(disk)).append((probe.now, float(disk.free_bytes)))
                self.room.setdefault(key_of(disk), Trail()).add(probe.now, float(disk.free_bytes))
        for server in probe.vllm:
            ring = self.servers.setdefault(server.url, deque(maxlen=KEPT))
            if ring and _fell(ring[-1][1], server):
                ring.clear()  # it was started again: its counters begin anew
            ring.append((probe.now, server))

    def spark(self, gpu: int, width: int) -> str:
        """The utilisation of the last probes, one column each, newest on the right."""
        return sparkline([value for _, value in self.busy.get(gpu, ())], width, top=100.0)

    def mean_busy(self) -> list[float]:
        """The mean utilisation over all GPUs at the last probes, newest last."""
        return [value for _, value in self.mean]

    def disk_rate(self, disk: Disk) -> float | None:
        """Bytes a second by which free space changes (negative: it fills), by least squares over the last quarter of an
        hour; None where that is not known yet."""
        samples = list(self.free.get(key_of(disk), ()))
        samples = [s for s in samples if s[0] >= samples[-1][0] - DISK_WINDOW_S] if samples else []
        if len(samples) < 3 or samples[-1][0] - samples[0][0] < LEAST_DISK_S:
            return None
        return slope(samples)

    def full_in_s(self, disk: Disk) -> float | None:
        """Seconds until the disk is full at this rate; None where it does not fill."""
        rate = self.disk_rate(disk)
        if rate is None or rate >= 0 or disk.free_bytes is None:
            return None
        return disk.free_bytes / -rate

    def rates(self, url: str) -> Rates:
        """What the server at ``url`` did over the last minute."""
        ring = self.servers.get(url)
        if not ring or len(ring) < 2:
            return Rates()
        t1, last = ring[-1]
        t0, first = next((pair for pair in ring if pair[0] >= t1 - WINDOW_S), ring[-2])
        if t1 <= t0:
            return Rates()
        drafts = _grown(first.drafts, last.drafts)
        accepted = _grown(first.accepted_tokens, last.accepted_tokens)
        length: float | None = None
        positions: tuple[float, ...] = ()
        if drafts and accepted is not None and not last.extracting:
            length = 1 + accepted / drafts
            positions = tuple(
                max(0.0, (b - a) / drafts) for a, b in zip(_padded(first, last), last.accepted_per_pos, strict=False)
            )
        return Rates(
            _per_s(_grown(first.generation_tokens, last.generation_tokens), t1 - t0),
            _per_s(_grown(first.prompt_tokens, last.prompt_tokens), t1 - t0),
            drafts or 0.0, length, positions,
        )  # fmt: skip


def key_of(disk: Disk) -> str:
    return disk.mount or disk.path


def _ring(rings: dict[int, deque[Sample]] | dict[str, deque[Sample]], key: int | str) -> deque[Sample]:
    return rings.setdefault(key, deque(maxlen=KEPT))  # type: ignore[arg-type]


def _padded(first: VllmServer, last: VllmServer) -> Sequence[float]:
    missing = len(last.accepted_per_pos) - len(first.accepted_per_pos)
    return [*first.accepted_per_pos, *([0.0] * max(0, missing))]


def _fell(before: VllmServer, now: VllmServer) -> bool:
    names = ("generation_tokens", "drafts", "prompt_tokens")
    pairs = [(getattr(before, name), getattr(now, name)) for name in names]
    return before.pid != now.pid or any(a is not None and b is not None and b < a for a, b in pairs)


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before


def _per_s(amount: float | None, seconds: float) -> float | None:
    return None if amount is None else amount / seconds


def slope(samples: Sequence[Sample]) -> float:
    """Change a second by least squares; 0 where all samples are of one moment."""
    mean_t = math.fsum(t for t, _ in samples) / len(samples)
    mean_v = math.fsum(v for _, v in samples) / len(samples)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in samples)
    return math.fsum((t - mean_t) * (v - mean_v) for t, v in samples) / spread if spread else 0.0


def sparkline(values: Iterable[float], width: int, *, top: float) -> str:
    """The last ``width`` values as bars of one column, from nothing to ``top``; blank where there is no value yet."""
    shown = list(values)[-width:] if width > 0 else []
    steps = len(SPARKS) - 1
    bars = "".join(SPARKS[0 if value <= 0 else min(steps, max(1, math.ceil(value / top * steps)))] for value in shown)
    return bars.rjust(max(0, width))
