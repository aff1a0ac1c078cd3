"""How a host stands, in few words: what its row group on the Overview says. Pure.

Sums over a host's cards are sums of what its last probe measured; a card that does not say counts for nothing, and the
words say so by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3.core.run_states import LIVE_STATES
from tui.alerting import FULL_SHARE
from tui.formats import (
    STATE_WORDS,
    bytes_label,
    clean_line,
    duration_label,
    number_label,
    one_line,
    pair_label,
    share,
    short_duration,
)
from tui.history import History, sparkline
from tui.machine_words import disk_warning

if TYPE_CHECKING:
    from eagle3.core.records import Disk, Gpu, Probe, RunSummary, VllmServer
    from tui.state import Console, Known

WORST_STATES = ("failed", "lost", "unknown", "stalled", "unsupervised")
RECENT_S = 24 * 3600.0
"""A run that failed longer ago is no alert of today."""


@dataclass(frozen=True)
class Part:
    """One line of a group: what it is about, and the words."""

    name: str
    words: str
    wrong: bool = False


def total(values: Sequence[float | int | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def gpu_words(gpus: Sequence[Gpu], history: History, columns: int = 12) -> str:
    """ "8 × H200 · 512 / 1128 GiB · 61% ▂▅█ · 3.4 kW · 71°C · held by pilot-1": over all cards of the host."""
    names = sorted({clean_line(gpu.name, 40).removeprefix("NVIDIA ") or "GPU" for gpu in gpus})
    words = [f"{len(gpus)} × {', '.join(names)}"]
    words.append(pair_label(total([g.memory_used_bytes for g in gpus]), total([g.memory_total_bytes for g in gpus])))
    busy = [gpu.utilization_pct for gpu in gpus if gpu.utilization_pct is not None]
    if busy:
        words.append(f"{sum(busy) / len(busy):.0f}% {sparkline(history.mean_busy(), columns, top=100.0).strip()}".rstrip())
    if (watts := total([gpu.power_w for gpu in gpus])) is not None:
        words.append(f"{watts:.0f} W" if watts < 1000 else f"{watts / 1000:.1f} kW")
    if heats := [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]:
        words.append(f"{max(heats):.0f}°C")
    if holders := holder_names(gpus):
        words.append(f"held by {', '.join(holders[:3])}" + (" …" if len(holders) > 3 else ""))
    return " · ".join(words)


def holder_names(gpus: Sequence[Gpu]) -> list[str]:
    """Who holds memory on these cards, each once: a run by its name, another process by its name or number."""
    found: dict[str, None] = {}
    for gpu in gpus:
        for process in gpu.processes:
            who = process.get("run_id") or process.get("name") or f"pid {process.get('pid', '?')}"
            found[one_line(str(who), 40)] = None
    return list(found)


def disk_words(disk: Disk, history: History) -> str:
    """ "/data 9.0 / 500 GiB free, -1.2 GiB/h, full in 7 h 30 min"."""
    words = f"{clean_line(disk.mount or disk.path, 30)} {pair_label(disk.free_bytes, disk.total_bytes)} free"
    rate, full = history.disk_rate(disk), history.full_in_s(disk)
    if rate is not None and abs(rate) * 3600 >= 1 << 20:
        words += f", {'+' if rate > 0 else '-'}{bytes_label(abs(rate) * 3600)}/h"
    if full is not None:
        words += f", full in {duration_label(full)}"
    warning = disk_warning(disk)
    return f"{words} ({warning})" if warning else words


def server_words(server: VllmServer, history: History) -> str:
    """One vLLM server: health, model, requests, rate, and the served length where it speculates."""
    symbol = {"ok": "●", "down": "✗"}.get(server.health, "?")
    name = ", ".join(clean_line(model, 40) for model in server.models) or clean_line(server.url, 60).removeprefix("http://")
    words = [f"{symbol} {name}"]
    if server.running is not None:
        words.append(f"{server.running:.0f} running, {server.waiting or 0:.0f} waiting")
    rates = history.rates(server.url)
    if rates.tok_s is not None:
        words.append(f"{number_label(rates.tok_s)} tokens/s")
    if rates.accept_len is not None:
        words.append(f"served length {number_label(rates.accept_len)}")
    return "  ".join(words)


def run_words(known: Known[RunSummary], now: float) -> str:
    """One live run: name, stage, how far, what is left of the stage."""
    run = known.value
    words = [f"{STATE_WORDS.get(run.state, ('?', ''))[0]} {clean_line(run.run_id, 40)}"]
    if progress := run.progress:
        part = share(progress.done, progress.total)
        words.append(f"{clean_line(progress.stage, 20)}" + (f" {part:.0%}" if part is not None else ""))
        if progress.eta_s is not None:
            words.append(f"{short_duration(max(0.0, progress.eta_s - (run.now - progress.t) - (now - (known.at or now))))} left")
    return "  ".join(words)


def alerts_of(console: Console, now: float) -> list[str]:
    """What is wrong on this host now, each in a few words: link, cards, disks, servers, runs of the last day."""
    found = []
    if console.link.status in ("down", "refused"):
        found.append(one_line(console.link.reason, 120) or f"the link is {console.link.status}")
    elif console.probe.problem:
        found.append(one_line(console.probe.problem, 120))
    probe = console.probe.value
    for gpu in probe.gpu.gpus if probe else []:
        if gpu.lost or gpu.ecc_uncorrected or gpu.remap_failed:
            found.append(f"GPU {gpu.index} {'lost' if gpu.lost else 'memory errors'}")
    for disk in probe.disks if probe else []:
        free = share(disk.free_bytes, disk.total_bytes)
        if not disk.read_only and free is not None and free < FULL_SHARE:
            found.append(f"{clean_line(disk.mount or disk.path, 30)} {bytes_label(disk.free_bytes)} free")
    found += [
        f"vLLM {clean_line(s.url, 60).removeprefix('http://')} down" for s in (probe.vllm if probe else []) if s.health == "down"
    ]
    for known in console.runs.values():
        run = known.value
        if run.state in WORST_STATES and (run.ended_at is None or run.now - run.ended_at < RECENT_S):
            found.append(f"{clean_line(run.run_id, 40)} {run.state}")
    return found


def live_runs(console: Console) -> list[Known[RunSummary]]:
    """The runs with a process, the newest first."""
    return [known for known in console.runs_by_age() if known.value.state in LIVE_STATES]


def summary_words(console: Console) -> list[str]:
    """A folded group in short pieces, the most telling first."""
    probe = console.probe.value
    live = len(live_runs(console))
    words = (
        [f"{live} running" if live else f"{len(console.runs)} runs" if console.runs else "no runs"]
        if console.runs_known or console.runs
        else []
    )
    if probe is None:
        return words
    if probe.gpu.status == "ok" and probe.gpu.gpus:
        busy = [gpu.utilization_pct for gpu in probe.gpu.gpus if gpu.utilization_pct is not None]
        words.append(f"{len(probe.gpu.gpus)} GPUs" + (f" {sum(busy) / len(busy):.0f}%" if busy else ""))
    else:
        words.append("no GPU" if probe.gpu.status == "none" else "GPUs unknown")
    if disk := fullest(probe.disks):
        words.append(f"{clean_line(disk.mount or disk.path, 20)} {bytes_label(disk.free_bytes)} free")
    if probe.vllm:
        words.append(f"{sum(s.health == 'ok' for s in probe.vllm)} of {len(probe.vllm)} vLLM healthy")
    return words


def fullest(disks: Sequence[Disk]) -> Disk | None:
    """The disk with the smallest share free, among those that can be written."""
    known = [
        (free, n) for n, d in enumerate(disks) if not d.read_only and (free := share(d.free_bytes, d.total_bytes)) is not None
    ]
    return disks[min(known)[1]] if known else None


def parts_of(console: Console, now: float) -> list[Part]:
    """An open group, line by line: GPUs, the fullest disk, servers, live runs, alerts."""
    probe: Probe | None = console.probe.value
    parts: list[Part] = []
    if probe is not None:
        gpus = probe.gpu.gpus
        words = (
            gpu_words(gpus, console.history)
            if gpus
            else "none"
            if probe.gpu.status == "none"
            else f"unknown: {one_line(probe.gpu.text, 80)}"
        )
        parts.append(Part("GPUs", words))
        if disk := fullest(probe.disks):
            parts.append(Part("Disk", disk_words(disk, console.history), bool(disk_warning(disk))))
        parts += [Part("vLLM", server_words(server, console.history), server.health != "ok") for server in probe.vllm[:2]]
    live = live_runs(console)
    parts += [Part("Run", run_words(known, now)) for known in live[:3]]
    if len(live) > 3:
        parts.append(Part("Runs", f"{len(live) - 3} more running"))
    if alerts := alerts_of(console, now):
        parts.append(Part("Alerts", "; ".join(alerts), True))
    return parts
