"""How values are said: bytes, durations, ages, shares, and a word with a symbol for every state. Pure; no Textual.

Everything shown to a person goes through here, so that "3 min 05 s" is written the same way on every screen.
"""

from __future__ import annotations

import math
import re

UNKNOWN = "–"

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

LINK_WORDS: dict[str, tuple[str, str]] = {
    "connecting": ("◌", "connecting"),
    "up": ("●", "up"),
    "degraded": ("▲", "slow"),
    "down": ("✗", "down"),
    "refused": ("✗", "refused"),
}
"""Link status -> symbol and word."""

CHECK_WORDS: dict[str, tuple[str, str]] = {
    "ok": ("✓", "ok"),
    "warn": ("▲", "warning"),
    "fail": ("✗", "failed"),
    "unknown": ("?", "unknown"),
    "skipped": ("–", "skipped"),
}
"""Status of a check -> symbol and word."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC: titles, clipboard, links
    r"|\x1b[PX^_].*?(?:\x1b\\|$)"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?",  # two-character escapes
    re.DOTALL,
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean_line(text: str, limit: int = 500) -> str:
    """One line of remote text made harmless: escape sequences, control and direction characters removed.

    A ``\\r`` progress line shows what a terminal would show last; more than ``limit`` characters are cut with "…".
    """
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    text = _CONTROLS.sub("", _ESCAPES.sub("", text[: limit * 20].replace("\n", " "))).expandtabs(4)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str, limit: int = 500) -> str:
    """Remote text of any number of lines as one harmless line."""
    return clean_line(" ".join(text.split()), limit)


def state_label(state: str) -> str:
    """Symbol and word, such as "● running"."""
    return " ".join(STATE_WORDS.get(state, ("?", state or "unknown")))


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


def pair_label(used: float | None, total: float | None) -> str:
    """Two amounts in the unit of the second: "96 / 141 GiB"."""
    if used is None or total is None or total <= 0:
        return f"{bytes_label(used)} / {bytes_label(total)}"
    value, unit, scale = float(total), "B", 1.0
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
        scale *= 1024
    digits = 0 if value >= 100 or unit == "B" else 1
    return f"{used / scale:.{digits}f} / {value:.{digits}f} {unit}"


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


def short_duration(seconds: float | None) -> str:
    """A duration in at most six columns for tables: "8s", "3m05", "2h10", "4d3h"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    total = max(0, round(seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}"
    if total < 48 * 3600:
        return f"{total // 3600}h{total % 3600 // 60:02d}"
    return f"{total // 86400}d{total % 86400 // 3600}h"


def age_label(seconds: float | None) -> str:
    """An age: "now", "12 s ago", "3 min ago", "2 h ago", "5 d ago"."""
    if seconds is None or not math.isfinite(seconds):
        return "never"
    if seconds < 1.5:
        return "now"
    for unit, size, limit in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} d ago"


def number_label(value: float | None, digits: int = 2) -> str:
    """A figure, or the dash where there is none or it is not finite."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def count_label(value: float | None) -> str:
    """A count with thousands separated: "5,000"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.0f}"


def rate_label(rate: float | None, unit: str) -> str:
    """Units per second, or seconds per unit where it is slow: "12.4 prompts/s", "1.2 s per step"."""
    if rate is None or not math.isfinite(rate) or rate <= 0:
        return ""
    if rate >= 1:
        return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.1f} {unit}/s"
    return f"{duration_label(1 / rate) if rate < 0.1 else f'{1 / rate:.1f} s'} per {unit.removesuffix('s')}"


def share(part: float | None, whole: float | None) -> float | None:
    """``part / whole`` between 0 and 1, or None where it cannot be said."""
    if part is None or not whole or not math.isfinite(part) or not math.isfinite(whole):
        return None
    return min(1.0, max(0.0, part / whole))


def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """The filled and the empty part of a bar of ``width`` columns. An unknown fraction is all track."""
    filled = 0 if fraction is None else round(fraction * width)
    if fraction and not filled:
        filled = 1
    return "━" * filled, "─" * (width - filled)


def fit(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns with "…"."""
    if width <= 0:
        return ""
    return text if len(text) <= width else text[: width - 1] + "…"
