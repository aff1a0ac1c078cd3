"""``attempts/<n>/alerts.jsonl``: which facts were to be told and what became of each, so that none is told twice.

A fact has an id. Its rows say ``due`` (with the whole alert), ``sending`` (before the first try), then ``sent`` or
``failed``; ``merged`` (told with another of its kind), ``dropped`` (the queue was full). After a supervisor's death what
is ``due`` is still to be told; what is ``sending`` may have arrived, so it is not told again.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

from eagle3.runner import redact, rundir
from eagle3.runner.errors import complain


class Ledger:
    """Knows what this process has written even where the disk takes nothing. ``clock`` gives Unix seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = folder / "alerts.jsonl"
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: Dict[str, Dict[str, Any]] = {}
        for row in _rows(self._file):
            self._rows[row["id"]] = {**self._rows.get(row["id"], {}), **row}

    def known(self, fact: str) -> bool:
        """Whether the fact is in the ledger, whatever became of it."""
        with self._lock:
            return fact in self._rows

    def write(self, fact: str, kind: str, status: str, **more: Any) -> None:
        """Add a row. A disk that is full costs the row, never the alert."""
        row = {"v": 1, "t": self._clock(), "id": fact, "kind": kind, "status": status, **more}
        with self._lock:
            self._rows[fact] = {**self._rows.get(fact, {}), **row}
        try:
            rundir.append_line(self._file, row)
        except (OSError, ValueError) as error:
            complain(f"alert {kind} is {status} (not written down: {redact.redact(str(error))})")

    def due(self) -> List[Dict[str, Any]]:
        """The alerts that nobody has begun to deliver, the oldest first."""
        with self._lock:
            return [row["alert"] for row in self._rows.values() if row["status"] == "due" and isinstance(row.get("alert"), dict)]


def _rows(file: Path) -> List[Dict[str, Any]]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            row = json.loads(line.decode("utf-8"))
        except ValueError:
            continue  # the empty end, or a line that a full disk tore
        if isinstance(row, dict) and isinstance(row.get("id"), str) and isinstance(row.get("status"), str):
            found.append(row)
    return found
