"""Times in logs: read from a line, said by a person, and found by halving. Local time of the container throughout."""

from __future__ import annotations

import re
import time
from typing import Callable, Optional

_FULL = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
_NO_YEAR = re.compile(rb"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_AGO = re.compile(r"-?\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)(?:\s+ago)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_UNIT_S = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DAY_S = 86400.0
LOOKED_AT_BYTES = 200
"""Loggers write the time at the beginning of a line."""


def of_line(line: bytes, newest: float) -> Optional[float]:
    """Unix seconds of a line that begins with a time, None where it has none. A date without a year (vLLM's) is taken as
    the last such day not more than a day after ``newest``, the file's own time."""
    head = line[:LOOKED_AT_BYTES]
    if found := _FULL.search(head):
        return _made(*(int(part) for part in found.groups()))
    if found := _NO_YEAR.search(head):
        year = time.localtime(newest).tm_year
        month, day, hour, minute, second = (int(part) for part in found.groups())
        made = _made(year, month, day, hour, minute, second)
        if made is not None and made > newest + DAY_S:
            made = _made(year - 1, month, day, hour, minute, second)
        return made
    return None


def _made(year: int, month: int, day: int, hour: int, minute: int, second: int) -> Optional[float]:
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def said(text: str, newest: float) -> Optional[float]:
    """What a person means by "10:05", "10:05:30", "90m", "2h ago" or "2026-11-30 10:05": a clock time is the last one not
    after ``newest``, an age counts back from it. None where it is none of these."""
    words = text.strip().lower()
    if found := _AGO.fullmatch(words):
        return newest - float(found.group(1)) * _UNIT_S[found.group(2)]
    if found := _CLOCK.fullmatch(words):
        there = time.localtime(newest)
        made = _made(
            there.tm_year, there.tm_mon, there.tm_mday, int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)
        )
        return made if made is None or made <= newest + 1.0 else made - DAY_S
    full = words if words.count(":") != 1 else f"{words}:00"
    found_full = _FULL.fullmatch(full.encode("ascii", "replace"))
    return _made(*(int(part) for part in found_full.groups())) if found_full else None


def first_at(wanted: float, size: int, time_after: Callable[[int], Optional[float]]) -> int:
    """The smallest offset from which on times are at least ``wanted``, to within a line; ``size`` where all are older.
    ``time_after(offset)`` is the first time found at or after the offset. Assumes that times do not fall."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        found = time_after(middle)
        if found is None or found >= wanted:
            high = middle
        else:
            low = middle + 1
    return low
