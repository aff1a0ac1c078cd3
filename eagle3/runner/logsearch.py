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
from typing import Any, BinaryIO, Deque, Dict, Iterable, Iterator, List, Pattern, Set, Tuple, Union

from eagle3.runner import detach, log_limit
from eagle3.runner.errors import VerbError

LIMIT_S = 20.0
AROUND = 500
"""Matches named on each side of the place that the reader is at."""
LOOKED_AT_BYTES = 64 << 10
"""Of a longer line only the beginning is searched."""

LEVELS = (
    (
        "error",
        re.compile(rb"\b(?:ERROR|CRITICAL|FATAL)\b|\[error\]|\bTraceback \(most recent|^[A-Za-z_.]*(?:Error|Exception)\b:"),
    ),
    ("warn", re.compile(rb"\bWARN(?:ING)?\b|\[warn\]|\b[A-Za-z]*Warning: ")),
)
"""What a line of each level looks like: the worker's own, Python's and vLLM's loggers, tracebacks, the warnings module."""
_HINTS = {
    "error": (b"ERROR", b"CRITICAL", b"FATAL", b"[error]", b"Traceback", b"Error", b"Exception"),
    "warn": (b"WARN", b"[warn]", b"Warning"),
}
"""Each matching line holds one of these: finding them is twenty times faster than the patterns."""
CHUNK_BYTES = 4 << 20


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


def search(chunks: Iterable[Tuple[int, bytes]], looks: "Pattern[bytes]", at: int) -> Dict[str, Any]:
    """Every matching line of a log counted, those next to the byte ``at`` named, and its lines counted by level. ``chunks``
    are the log in pieces that end with a line, each with its offset."""
    before: Deque[int] = deque(maxlen=AROUND)
    after: List[int] = []
    counts = {level: 0 for level, _ in LEVELS}
    total = index = scanned = 0
    for offset, chunk in chunks:
        levels = {level: _level_lines(chunk, level, pattern) for level, pattern in LEVELS}
        levels["warn"] -= levels["error"]  # a line has one level, its worst
        for level, found in levels.items():
            counts[level] += len(found)
        named = next((levels[level] for level, pattern in LEVELS if pattern is looks), None)
        for start in sorted(named) if named is not None else _matching(chunk, looks):
            total += 1
            if offset + start < at:
                index += 1
                before.append(offset + start)
            elif len(after) < AROUND:
                after.append(offset + start)
        scanned = offset + len(chunk)
    return {"total": total, "before": list(before), "after": after, "index": index, "levels": counts, "scanned": scanned}


def _matching(chunk: bytes, looks: "Pattern[bytes]") -> Iterable[int]:
    start = 0
    lines = chunk.split(b"\n")
    for line in lines if lines[-1] else lines[:-1]:
        if looks.search(line if len(line) <= LOOKED_AT_BYTES else line[:LOOKED_AT_BYTES]):
            yield start
        start += len(line) + 1


def _level_lines(chunk: bytes, level: str, pattern: "Pattern[bytes]") -> Set[int]:
    """Where the lines of a level begin in ``chunk``."""
    found: Set[int] = set()
    for hint in _HINTS[level]:
        at = chunk.find(hint)
        while at >= 0:
            start, end = chunk.rfind(b"\n", 0, at) + 1, chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            if start not in found and pattern.search(chunk[start : min(end, start + LOOKED_AT_BYTES)]):
                found.add(start)
            at = chunk.find(hint, end)
    return found


def in_chunks(file: Union[BinaryIO, "_Part"], size: int = CHUNK_BYTES) -> Iterator[Tuple[int, bytes]]:
    """The file in pieces of about ``size`` bytes that end with a line, each with its offset; the last one may end without."""
    rest: List[bytes] = []
    at = 0
    while part := file.read(size):
        newline = part.rfind(b"\n")
        if newline < 0:
            rest.append(part)
            continue
        piece = b"".join([*rest, part[: newline + 1]])
        yield at, piece
        at += len(piece)
        rest = [part[newline + 1 :]]
    if any(rest):
        yield at, b"".join(rest)


class _Part:
    """A stretch of a file, to be read to its end."""

    def __init__(self, file: BinaryIO, begin: int, end: int) -> None:
        self._file, self._left = file, end - begin
        file.seek(begin)

    def read(self, size: int) -> bytes:
        part = self._file.read(min(size, self._left))
        self._left -= len(part)
        return part


def placed_chunks(file: BinaryIO) -> Iterator[Tuple[int, bytes]]:
    """As ``in_chunks``, without the hole in a log that was too long for the disk."""
    for begin, end in log_limit.stretches(file.fileno()):
        for at, chunk in in_chunks(_Part(file, begin, end)):
            yield begin + at, chunk


def main() -> int:
    """The child: a request as JSON on stdin, the answer as JSON on stdout."""
    request = json.loads(sys.stdin.read())
    looks = compiled(request["pattern"], request["ignore_case"])
    descriptor = os.open(request["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=1 << 20) as file:  # noqa: PTH123 - a descriptor, not a path
        json.dump(search(placed_chunks(file), looks, request["at"]), sys.stdout)
    return 0
