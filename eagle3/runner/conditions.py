"""What the supervisor notices besides the worker's end: free space, the worker's own warnings, silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

LOW_FACTOR, WELL_FACTOR = 1.25, 1.5
"""Low is said before the floor is reached, at which a stage ends itself; well again only clearly above, so that a disk at
the brink does not raise one alert after the other."""

_READ_BYTES = 1 << 18


QUIET_HEARTBEATS = 30
"""For so long nothing must move before an excursion is over: five minutes at the usual ten seconds."""


class Excursion:
    """Says once that something has left its place, however often it moves before it keeps still again. Two time daemons that
    fight move the clock at every look, and one that is late is late again: that is one thing to tell. It is over when nothing
    has moved for ``quiet_s`` seconds."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._moved_at = 0.0
        self.moves = 0
        """How often it has moved since it was told; 0 while nothing is out of its place."""

    @property
    def on(self) -> bool:
        """Whether it was told and has not been over since."""
        return self.moves > 0

    def look(self, moved: bool, now_s: float) -> Optional[bool]:
        """True where an excursion begins, False where one is over, None where neither does. ``now_s``: of a steady clock."""
        if moved:
            self.moves, self._moved_at = self.moves + 1, now_s
            return True if self.moves == 1 else None
        if not self.on or now_s - self._moved_at < self._quiet_s:
            return None
        self.moves = 0
        return False


class LowDisk:
    """Says when free space falls near the floor, and when it is well again. ``floor_bytes`` 0 says nothing."""

    def __init__(self, floor_bytes: int) -> None:
        self.floor_bytes = floor_bytes
        self.low = False

    def look(self, free_bytes: Optional[int]) -> Optional[bool]:
        """True where the disk has become low, False where it is well again, None where nothing has changed."""
        if free_bytes is None or self.floor_bytes <= 0:
            return None
        if not self.low and free_bytes < self.floor_bytes * LOW_FACTOR:
            self.low = True
            return True
        if self.low and free_bytes >= self.floor_bytes * WELL_FACTOR:
            self.low = False
            return False
        return None


class EventTail:
    """The rows that are added to ``events.jsonl`` from now on. Reads only what is new."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = self._size()

    def _size(self) -> int:
        try:
            return self._file.stat().st_size
        except OSError:
            return 0

    def rows(self) -> List[Dict[str, Any]]:
        """The new whole rows, each with its ``offset``; a file that was replaced by a shorter one is read from its start."""
        size = self._size()
        if size < self.offset:
            self.offset = 0
        if size == self.offset:
            return []
        try:
            with self._file.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read(_READ_BYTES)
        except OSError:
            return []
        found = []
        for line in chunk.split(b"\n")[:-1]:
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError:
                row = None  # torn by a full disk
            if isinstance(row, dict):
                found.append({**row, "offset": self.offset})
            self.offset += len(line) + 1
        if not found and len(chunk) == _READ_BYTES and b"\n" not in chunk:
            self.offset += len(chunk)  # no row of ours is so long
        return found


def is_guard(row: Dict[str, Any], attempt: int) -> bool:
    """Whether the row is a guard that spoke up, or an error of the worker; its last words are the failure itself."""
    if row.get("attempt") != attempt or row.get("actor") == "supervisor":
        return False
    kind = str(row.get("kind") or "")
    return kind != "failed" and (kind.startswith("guard") or row.get("level") == "error")


def log_tail(file: Path, limit_bytes: int) -> str:
    """The end of a log for a person, cut at a line where there is one; empty where there is no log."""
    try:
        with file.open("rb") as log:
            start = max(0, log.seek(0, os.SEEK_END) - limit_bytes)
            log.seek(start)
            text = log.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    return text.partition("\n")[2] if start and "\n" in text else text
