"""Searching a log for a pattern, in a child that can be killed: a pattern of a person can take for ever, and Python's
matching holds the interpreter, so in the helper itself it would hold every other answer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, Iterable, List, Pattern

from eagle3.runner import detach
from eagle3.runner.errors import VerbError

LIMIT_S = 20.0
AROUND = 500
"""Matches named on each side of the place that the reader is at."""
LOOKED_AT_BYTES = 64 << 10
"""Of a longer line only the beginning is searched."""

LEVELS = (
    ("error", re.compile(rb"\b(?:ERROR|CRITICAL|FATAL)\b|\bTraceback \(most recent|^[A-Za-z_.]*(?:Error|Exception)\b:")),
    ("warn", re.compile(rb"\bWARN(?:ING)?\b|\b[A-Za-z]*Warning: ")),
)
"""What a line of each level looks like: Python's and vLLM's loggers, tracebacks and the warnings module."""


def asked(path: Path, name: str, pattern: str, ignore_case: bool, at: int, limit_s: float = LIMIT_S) -> Dict[str, Any]:
    """Search ``path``: ``{"total","before","after","index","levels","scanned"}``. ``before`` and ``after`` are offsets of
    matching lines next to the byte ``at``, ``index`` how many matches lie before it. The pattern "level:error" means lines
    of that level. Raises VerbError for a pattern that is none, or that takes too long."""
    compiled(pattern, ignore_case)  # a mistake in it is told without a child
    request = json.dumps({"path": str(path), "pattern": pattern, "ignore_case": ignore_case, "at": at})
    try:
        done = subprocess.run(
            detach.own_command("logsearch"), input=request.encode(), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise VerbError(
            "failed", f"Searching {name} took longer than {limit_s:g} s and was given up.", "Use a simpler pattern."
        ) from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
        raise VerbError("failed", f"{name} cannot be searched: {last[0]}.", "See whether the file is still there.")
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def compiled(pattern: str, ignore_case: bool) -> "Pattern[bytes]":
    """The pattern, on bytes. Raises VerbError("usage") with what is wrong with it."""
    for level, looks in LEVELS:
        if pattern == f"level:{level}":
            return looks
    try:
        # Through text first: its errors name characters, not bytes.
        re.compile(pattern)
        return re.compile(pattern.encode(), re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError) as error:
        raise VerbError("usage", f"'{pattern}' is not a pattern: {error}.", "Escape ( [ * + ? . with a backslash.") from error


def search(lines: Iterable[bytes], looks: "Pattern[bytes]", at: int) -> Dict[str, Any]:
    """Every matching line of a log counted, those next to the byte ``at`` named, and its lines counted by level."""
    before: Deque[int] = deque(maxlen=AROUND)
    after: List[int] = []
    counts = {level: 0 for level, _ in LEVELS}
    total = index = offset = 0
    for line in lines:
        head = line if len(line) <= LOOKED_AT_BYTES else line[:LOOKED_AT_BYTES]
        if looks.search(head):
            total += 1
            if offset < at:
                index += 1
                before.append(offset)
            elif len(after) < AROUND:
                after.append(offset)
        for level, pattern in LEVELS:
            if pattern.search(head):
                counts[level] += 1
                break
        offset += len(line)
    return {"total": total, "before": list(before), "after": after, "index": index, "levels": counts, "scanned": offset}


def main() -> int:
    """The child: a request as JSON on stdin, the answer as JSON on stdout."""
    request = json.loads(sys.stdin.read())
    looks = compiled(request["pattern"], request["ignore_case"])
    descriptor = os.open(request["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=1 << 20) as file:  # noqa: PTH123 - a descriptor, not a path
        json.dump(search(file, looks, request["at"]), sys.stdout)
    return 0
