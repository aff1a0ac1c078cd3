"""The record of an end, and how it gets onto a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.runner import rundir
from eagle3.runner.derive import EXIT_STOPPED
from eagle3.runner.errors import complain

RESERVE_BYTES = 8192


def ended_record(
    attempt: int, returncode: Optional[int], stop: Dict[str, Any], *, survivors: List[Dict[str, Any]], error: str, now: float
) -> Dict[str, Any]:
    """``exit.json``. ``returncode`` as subprocess gives it: negative for a signal, None where it is not known.

    It counts as stopped when the worker said so (75), or when it did not finish after a stop "now".
    """
    code = returncode if returncode is not None and returncode >= 0 else None
    number = -returncode if returncode is not None and returncode < 0 else None
    asked_now = stop.get("mode") == "now"
    record: Dict[str, Any] = {
        "v": 1,
        "attempt": attempt,
        "code": code,
        "signal": number,
        "stopped": not error and (code == EXIT_STOPPED or (asked_now and code != 0)),
        "t": now,
        "survivors": survivors[:32],
    }
    if record["stopped"] and stop.get("by"):
        record["by"] = str(stop["by"])
    if error:
        record["error"] = error[:1000]
    return record


class Reserve:
    """Blocks of the disk set aside at the start, so that the end can be recorded when nothing else can be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / ".reserve"

    def take(self) -> None:
        """Occupy the blocks; random bytes, so that no file system stores them as nothing."""
        rundir.write_bytes(self._file, os.urandom(RESERVE_BYTES))

    def write_exit(self, record: Dict[str, Any]) -> None:
        """Write ``exit.json``; on a full disk into the reserved blocks, which then take that name."""
        target = self._folder / "exit.json"
        try:
            rundir.write_json(target, record)
        except OSError as error:
            complain(f"exit.json goes into its reserved blocks: {error}")
            self._overwrite(record, target)
        else:
            self._file.unlink(missing_ok=True)

    def _overwrite(self, record: Dict[str, Any], target: Path) -> None:
        content = json.dumps(record).encode("ascii")
        if len(content) >= RESERVE_BYTES:
            content = json.dumps({**record, "survivors": record["survivors"][:4]}).encode("ascii")
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, content.ljust(RESERVE_BYTES - 1) + b"\n", 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._file.replace(target)
        rundir.fsync_folder(self._folder)
