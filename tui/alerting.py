"""What is worth calling an operator for, and when they may be called. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3.core.run_states import LIVE_STATES
from tui.formats import bytes_label, one_line, state_label

if TYPE_CHECKING:
    from eagle3.core.records import Disk, RunSummary, Since

KINDS = ("finished", "failed", "stalled", "lost", "disk", "link")
"""The kinds of alerts: a run that ended well or badly, that is silent, that is gone; a disk nearly full; a link that is lost."""
OF_STATE = {
    "finished": "finished", "failed": "failed", "stalled": "stalled", "unsupervised": "lost", "lost": "lost", "unknown": "lost",
}  # fmt: skip
FULL_SHARE = 0.05
ROOM_SHARE = 0.07
"""A disk that was nearly full has room again from here on: at the border itself a call would come with every file."""
LINK_DOWN_S = 60.0
"""A link that is down for less is no reason to call anybody."""
_SPAN = re.compile(r"(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)")


@dataclass(frozen=True)
class Alert:
    """One sentence about one thing. ``key`` is the same for the same fact, so that it is told once."""

    kind: str
    key: str
    text: str


def of_runs(before: Mapping[str, RunSummary], now: Iterable[RunSummary]) -> list[Alert]:
    """Runs whose state became one worth a call since the last look. A run that is seen for the first time is no news."""
    found = []
    for _, run in _changed(before, now):
        if kind := OF_STATE.get(run.state):
            words = one_line(run.state_text, 200)
            text = f"{run.run_id}: {state_label(run.state)}" + (f" ({words})" if words else "")
            found.append(Alert(kind, _key_of(run), text))
    return found


def over_runs(before: Mapping[str, RunSummary], now: Iterable[RunSummary]) -> list[str]:
    """Keys of what no longer holds: a run that goes on after a stall may stall again, and that is news."""
    return [_key_of(old) for old, run in _changed(before, now)]


def _changed(before: Mapping[str, RunSummary], now: Iterable[RunSummary]) -> list[tuple[RunSummary, RunSummary]]:
    """Runs in another state than before. An answer that is older than what is known (two were under way) changes nothing."""
    pairs = [(old, run) for run in now if (old := before.get(run.run_id)) is not None and run.now >= old.now]
    return [(old, run) for old, run in pairs if (old.state, old.attempt) != (run.state, run.attempt)]


def _key_of(run: RunSummary) -> str:
    return f"{run.run_id} {run.attempt} {run.state}"


def of_disks(disks: Iterable[Disk]) -> list[Alert]:
    """Disks with less than a twentieth free, or that cannot be written any more."""
    found = []
    for disk in disks:
        where = disk.mount or disk.path
        if disk.read_only:
            continue  # most are so by purpose; readiness says which matter
        if disk.total_bytes and disk.free_bytes is not None and disk.free_bytes < FULL_SHARE * disk.total_bytes:
            found.append(Alert("disk", f"disk {where}", f"Disk {where}: {bytes_label(disk.free_bytes)} free"))
    return found


def over_disks(disks: Iterable[Disk]) -> list[str]:
    """Keys of disks that have room: one that fills up again is news."""
    return [
        f"disk {disk.mount or disk.path}"
        for disk in disks
        if disk.total_bytes and disk.free_bytes is not None and disk.free_bytes >= ROOM_SHARE * disk.total_bytes
    ]


def of_link(status: str, down_s: float, host: str, reason: str) -> list[Alert]:
    """A link that is down for a minute, or refused: a host that was built anew while nobody looked comes back no other way."""
    if status not in ("down", "refused") or down_s < LINK_DOWN_S:
        return []
    return [Alert("link", "link", f"No link to {host} for {down_s / 60:.0f} min: {one_line(reason, 200)}")]


def quiet_span(text: str) -> tuple[int, int] | None:
    """ "22:00-07:00" as minutes of the day, None for an empty text. Raises ValueError."""
    if not text.strip():
        return None
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError("write quiet hours as 22:00-07:00")
    hour, minute, to_hour, to_minute = (int(part) for part in found.groups())
    if max(hour, to_hour) > 23 or max(minute, to_minute) > 59:
        raise ValueError("write quiet hours as 22:00-07:00")
    return hour * 60 + minute, to_hour * 60 + to_minute


def is_quiet(span: tuple[int, int] | None, minute_of_day: int) -> bool:
    """Whether nobody may be called now. A span may go over midnight; one from a time to the same time is the whole day."""
    if span is None:
        return False
    start, end = span
    if start < end:
        return start <= minute_of_day < end
    return minute_of_day >= start or minute_of_day < end


def since_words(before: Mapping[str, RunSummary], now: Iterable[RunSummary], away: str) -> str:
    """What changed while nobody looked: "Since you last looked, 14 h ago: a ✓ finished, b ✗ failed, 1 new run". Empty where
    nothing did."""
    changed, new = [], 0
    for run in now:
        old = before.get(run.run_id)
        if old is None:
            new += 1
            if run.state not in LIVE_STATES:
                changed.append(f"{run.run_id} {state_label(run.state)}")
        elif (old.state, old.attempt) != (run.state, run.attempt):
            changed.append(f"{run.run_id} {state_label(run.state)}")
    parts = changed[:4] + ([f"{len(changed) - 4} more changed"] if len(changed) > 4 else [])
    if new:
        parts.append(f"{new} new run{'s' if new > 1 else ''}")
    return f"Since you last looked, {away}: {', '.join(parts)}." if parts else ""


TOLD = frozenset({"created", "stop_asked", "attempt_ended", "service_stopping", "service_failed", "paused", "fork"})
"""What is worth a word on return, besides warnings and errors."""


def happened_words(since: Since, away: str, most: int = 5) -> str:
    """Who did what while nobody looked: "Since you last looked, 14 h ago: ann: pilot-1 launched; pilot-1 failed …". The newest
    are named. Empty where nothing of weight happened."""
    found = [h for h in since.happenings if h.kind in TOLD or h.level == "error" or h.kind.startswith("guard")]
    if not found:
        return ""
    words = [
        f"{f'{one_line(h.actor, 40)}: ' if h.kind in TOLD and h.actor else ''}{h.run_id} {one_line(h.text, 90)}" for h in found
    ]
    more = len(found) - most + since.left_off
    return f"Since you last looked, {away}: {'; '.join(words[-most:])}" + (f"; and {more} more before" if more > 0 else "") + "."
