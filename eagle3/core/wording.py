"""The same words for the same thing wherever a person reads it: durations, sizes, rates, states, progress lines."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from eagle3.core.run_states import LIVE_STATES
from eagle3.core.stage_order import STAGES

if TYPE_CHECKING:
    from eagle3.core.records import Progress, Result, RunSummary

UNKNOWN = "–"
"""Stands where there is no figure."""

STATE_WORDS: dict[str, tuple[str, str]] = {
    "starting": ("◌", "starting"),
    "running": ("●", "running"),
    "unsupervised": ("◐", "running, unsupervised"),
    "stalled": ("▲", "stalled"),
    "finished": ("✓", "finished"),
    "failed": ("✗", "failed"),
    "stopped": ("■", "stopped"),
    "lost": ("○", "lost"),
    "unknown": ("?", "unknown"),
}
"""Run state -> symbol and word."""


def run_words(run: RunSummary) -> tuple[str, str]:
    """Symbol and word of a run in a list: its state, or that it runs no more than in name: paused, pausing, stopping."""
    symbol, word = STATE_WORDS.get(run.state, ("?", run.state))
    if run.state != "running":
        return symbol, word
    if run.stop_mode:
        return symbol, "stopping"
    if run.paused_at is not None:
        return symbol, "paused" if run.state_text.startswith("Paused") else "pausing"
    return symbol, word


def bytes_label(count: float | None) -> str:
    """Bytes in binary units with three figures at most: "512 B", "1.5 GiB", "141 GiB"."""
    if count is None or not math.isfinite(count):
        return UNKNOWN
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            digits = 0 if unit == "B" or abs(value) >= 100 else 1
            return f"{value:.{digits}f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration_label(seconds: float | None) -> str:
    """A duration with its two largest units: "8 s", "3 min 05 s", "2 h 10 min", "4 d 3 h"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def rate_label(rate: float | None, unit: str) -> str:
    """Units per second, or seconds per unit where it is slow: "12.4 prompts/s", "1.2 s per step"."""
    if rate is None or not math.isfinite(rate) or rate <= 0:
        return ""
    if rate >= 1:
        return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.1f} {unit}/s"
    return f"{duration_label(1 / rate) if rate < 0.1 else f'{1 / rate:.1f} s'} per {unit.removesuffix('s')}"


def progress(p: Progress) -> str:
    """``train 42/180 steps · 1.2 steps/s · 2 min 05 s left``."""
    count = f"{p.done:g}" if p.total is None else f"{p.done:g}/{p.total:g}"
    parts = [f"{p.stage} {count} {p.unit}".strip()]
    if rate := rate_label(p.rate, p.unit):
        parts.append(rate)
    if p.eta_s is not None:
        parts.append(f"{duration_label(p.eta_s)} left")
    if p.reason:
        parts.append(p.reason)
    return " · ".join(parts)


def progress_line(summary: RunSummary) -> str:
    """One line for a terminal without a screen: state, stages, and the progress of a run that goes on."""
    symbol, word = run_words(summary)
    parts = [f"{symbol} {word}", summary.run_id, f"{len(summary.stages)} of {len(STAGES)} stages done"]
    if summary.state in LIVE_STATES and summary.progress and summary.progress.stage:
        parts.append(progress(summary.progress))
    elif summary.stages and summary.state not in LIVE_STATES:
        parts.append(f"{duration_label(sum(summary.stages.values()))} in stages")
    return " · ".join(parts)


def went_on(run_id: str, reply: dict[str, Any], again: str) -> str:
    """What the answer to a "go-on" says: who had paused the run, and who still does. ``again``: how to end their pauses too."""
    lifted, held = (_names(reply.get(name) or []) for name in ("lifted", "held"))
    if held:
        return f"{run_id} is still held by {held}{f', no longer by {lifted}' if lifted else ''}; {again} lets it go on."
    return f"{run_id} goes on; {lifted or 'somebody'} had paused it."


def paused_already(run_id: str, reply: dict[str, Any]) -> str:
    """What the answer to a "pause" says where somebody had paused the run before; empty where it does as it was asked."""
    people = [pause for pause in reply.get("held") or [] if not pause.get("guard")]
    return f"{run_id} is paused already, by {_names(people) or 'somebody'}." if reply.get("already") else ""


def _names(pauses: list[dict[str, Any]]) -> str:
    return listed([str(pause.get("by") or "somebody") for pause in pauses])


def listed(words: Collection[str]) -> str:
    """ "a", "a and b", "a, b and c"; nothing of none."""
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def result_of(summary: RunSummary, result: dict[str, object] | None) -> Result:
    """``result.json`` where the run has one, otherwise what the summary knows (a failed or stopped run)."""
    from eagle3.core.records import Result  # the words alone are wanted earlier, by a console's first picture

    if result:
        return Result.model_validate(result)
    ended = summary.ended_at or summary.now
    wall_s = ended - summary.created_at if summary.created_at else 0.0
    return Result(
        run_id=summary.run_id,
        run_dir=summary.run_dir,
        state=summary.state,
        wall_s=round(wall_s, 1),
        stages=summary.stages,
        verdict="none",
        verdict_text=summary.state_text,
    )
