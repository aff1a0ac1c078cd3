"""The same words for the same thing wherever a person reads it: durations, sizes, states, progress lines."""

from __future__ import annotations

from eagle3.core.records import Progress, Result, RunSummary

STATE_WORDS = {
    "starting": "starting",
    "running": "running",
    "unsupervised": "running, unsupervised",
    "stalled": "stalled",
    "finished": "finished",
    "failed": "failed",
    "stopped": "stopped",
    "lost": "lost at a restart, resumable",
    "unknown": "ended, exit unknown",
}


def duration(seconds: float | None) -> str:
    """``95`` → ``1 min 35 s``; ``None`` → ``–``."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, secs = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {secs:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: float | None) -> str:
    """Bytes in binary units: ``1536`` → ``1.5 KiB``; ``None`` → ``–``."""
    if count is None:
        return "–"
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def progress(p: Progress) -> str:
    """``train 42/180 steps · 1.2 steps/s · 2 min 05 s left``."""
    count = f"{p.done:g}" if p.total is None else f"{p.done:g}/{p.total:g}"
    parts = [f"{p.stage} {count} {p.unit}".strip()]
    if p.rate:
        parts.append(f"{p.rate:.3g} {p.unit}/s".replace(" /s", "/s"))
    if p.eta_s is not None:
        parts.append(f"{duration(p.eta_s)} left")
    if p.reason:
        parts.append(p.reason)
    return " · ".join(parts)


def progress_line(summary: RunSummary) -> str:
    """One line for a terminal without a screen: state, stage count, progress."""
    where = progress(summary.progress) if summary.progress and summary.progress.stage else "no progress yet"
    state = STATE_WORDS.get(summary.state, summary.state)
    return f"{summary.run_id} [{state}] {len(summary.stages)} of 7 stages done · {where}"


def result_of(summary: RunSummary, result: dict[str, object] | None) -> Result:
    """``result.json`` where the run has one, otherwise what the summary knows (a failed or stopped run)."""
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
