"""How values are said: bytes, durations, ages, shares, and a word with a symbol for every state. Pure; no Textual.

Everything shown to a person goes through here, so that "3 min 05 s" is written the same way on every screen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from eagle3.core.harmless import clean_line, clean_lines, clean_text, one_line
from eagle3.core.readiness.words import CHECK_WORDS
from eagle3.core.wording import STATE_WORDS, UNKNOWN, bytes_label, duration_label, rate_label

__all__ = [
    "CHECK_WORDS",
    "LINK_WORDS",
    "STATE_WORDS",
    "UNKNOWN",
    "age_label",
    "bar",
    "bytes_label",
    "clean_line",
    "clean_lines",
    "clean_text",
    "count_label",
    "duration_label",
    "fit",
    "fit_middle",
    "moment_label",
    "number_label",
    "one_line",
    "pair_label",
    "rate_label",
    "share",
    "short_duration",
    "state_label",
    "told_apart",
]  # fmt: skip

LINK_WORDS: dict[str, tuple[str, str]] = {
    "connecting": ("◌", "connecting"),
    "up": ("●", "up"),
    "degraded": ("▲", "slow"),
    "down": ("✗", "down"),
    "refused": ("✗", "refused"),
}
"""Link status -> symbol and word."""


def moment_label(t: float, now: float, form: str = "%H:%M") -> str:
    """A moment (Unix seconds) by this machine's time zone: "14:03", and with its day where that is not the day of ``now``."""
    then = time.localtime(t)
    return time.strftime(form if then[:3] == time.localtime(now)[:3] else f"%b %d {form}", then)


def state_label(state: str) -> str:
    """Symbol and word, such as "● running"."""
    return " ".join(STATE_WORDS.get(state, ("?", state or "unknown")))


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


def figure_label(value: float | None) -> str:
    """A figure of any size in few columns: "4.31", "1,234", and "5e-05" where two digits would be nothing."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def count_label(value: float | None) -> str:
    """A count with thousands separated: "5,000"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.0f}"


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


def fit_middle(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns in its front half: names of runs differ at their ends, and often begin alike."""
    front = width // 3
    return text if len(text) <= width else f"{text[:front]}…{text[front + 1 - width :]}"


def told_apart(texts: Sequence[str], width: int) -> list[str]:
    """The texts in ``width`` columns each, cut so that those that differ still do: what they have in common goes first. Where
    nothing helps they are numbered."""
    different, ends = len(set(texts)), [fit(text, width) for text in texts]
    if len(set(ends)) == different or width < 6:
        return ends
    letters = list(zip(*texts, strict=False))
    common = next((place for place, found in enumerate(letters) if len(set(found)) > 1), len(letters))
    word = max(texts[0].rfind(mark, 0, common) for mark in "-_./ ") + 1
    tries = []
    if max(len(text) for text in texts) - word <= width // 2:
        tries.append([text if len(text) <= width else f"{text[: word - 1 + width - len(text)]}…{text[word:]}" for text in texts])
    for begin in (word, common):
        front, rest = "…" if begin else "", [text[begin:] for text in texts]
        room = width - len(front)
        tries.append([front + fit(text, room) for text in rest])
        for tail in range(1, room - 1):
            kept = room - 1 - tail
            tries.append([front + (text if len(text) <= room else f"{text[:kept]}…{text[-tail:]}") for text in rest])
    best = max(tries, key=lambda tried: len(set(tried)))
    if len(set(best)) == different:
        return best
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts), 1)}
    return [fit(f"{numbers[text]} {text}", width) for text in texts]
