"""A run's logs as a reader turns their pages: the verb ``log``. A log of any length costs what is shown of it.

Offsets are bytes. A line is ``{"at": its first byte, "text": …, "chars": its length}``; of a line that was rewritten with
``\\r`` only what stands in the end is given, and more than `LINE_CHARS` are cut.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import increments, log_limit, logsearch, logtime, state
from eagle3.runner.errors import VerbError, from_os_error

LINE_CHARS = 2000
PAGE_LINES = 500
"""The most lines before and after a place in one reply."""
PAGE_BYTES = 2 << 20
"""The most that is read in one direction; a line longer than this comes in pieces."""

Page = Dict[str, Any]


def log(run_dir: Path, op: str, args: Dict[str, Any]) -> Dict[str, Any]:
    """Do ``op``: files, page, search or time. Raises VerbError."""
    if op == "files":
        return {"files": files(run_dir)}
    name = str(args["name"])
    path = increments.confined(run_dir, name)
    if op == "search":
        return logsearch.asked(path, name, str(args["pattern"]), bool(args.get("ignore_case")), int(args.get("at") or 0))
    if op not in ("page", "time"):
        raise VerbError("usage", f"There is no way {op!r} to read a log.", "Use files, page, search or time.")
    descriptor, status = _opened(path, name, run_dir)
    try:
        if op == "time":
            return {"at": _at_time(descriptor, status, str(args["text"]))}
        return _page(descriptor, status, args)
    finally:
        os.close(descriptor)


def files(run_dir: Path) -> List[Dict[str, Any]]:
    """Every log of the run with its size and the time of its last line: the attempts', the last one first, then others'."""
    paths = [state.attempt_dir(run_dir, n) / "run.log" for n in reversed(state.attempts(run_dir))]
    paths += sorted((run_dir / "logs").glob("*.log"))
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # not written yet, or just gone
        found.append({"name": str(path.relative_to(run_dir)), "bytes": status.st_size, "t": status.st_mtime})
    return found


def _opened(path: Path, name: str, run_dir: Path) -> Tuple[int, os.stat_result]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, f"reading {name} of the run {run_dir.name}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise VerbError("usage", f"{name} of the run {run_dir.name} is no file.", "Name a log of the run.")
    return descriptor, status


def _page(descriptor: int, status: os.stat_result, args: Dict[str, Any]) -> Page:
    """Lines around the byte ``at`` ("end": the end of the file): up to ``before`` ones that begin before it, and ``after``."""
    size = status.st_size
    wanted = args.get("at", "end")
    at = size if wanted == "end" else max(0, min(int(wanted), size))
    at, _ = log_limit.data_at(descriptor, at, size)
    before = max(0, min(int(args.get("before") or 0), PAGE_LINES))
    after = max(0, min(int(args.get("after") or 0), PAGE_LINES))
    begin = line_start(descriptor, at)
    lines = _backward(descriptor, begin, before) + _forward(descriptor, begin, after, size)
    start = lines[0][0] if lines else begin
    end = lines[-1][0] + len(lines[-1][1]) if lines else begin
    shown = [_shown(offset, line) for offset, line in lines]
    return {"lines": shown, "start": start, "end": end, "size": size, "t": status.st_mtime}


def line_start(descriptor: int, at: int) -> int:
    """Where the line that holds the byte ``at`` begins. At the end of a file whose last line is whole, that is the end.
    Inside a line that comes in pieces it is ``at`` itself."""
    first, until = log_limit.stretch_before(descriptor, at)
    low = max(first, at - PAGE_BYTES) if until == at else at  # behind a hole begins what is there
    newline = os.pread(descriptor, at - low, low).rfind(b"\n")
    if newline < 0:
        return at if at - low == PAGE_BYTES else low
    return low + newline + 1


def _forward(descriptor: int, begin: int, count: int, size: int) -> List[Tuple[int, bytes]]:
    lines: List[Tuple[int, bytes]] = []
    if count == 0 or begin >= size:
        return lines
    begin, until = log_limit.data_at(descriptor, begin, size)  # of a log that was too long the middle is a hole
    chunk = os.pread(descriptor, min(PAGE_BYTES, until - begin), begin)
    for line in _split(chunk):
        if len(lines) == count:
            break
        if not line.endswith(b"\n") and lines and begin + len(line) < size:
            break  # cut by the limit of one reply: the next page has it whole
        lines.append((begin, line))
        begin += len(line)
    return lines


def _split(chunk: bytes) -> List[bytes]:
    """Lines by ``\\n`` alone: bytes.splitlines would also end them at ``\\r``."""
    parts = [part + b"\n" for part in chunk.split(b"\n")]
    last = parts.pop()[:-1]
    return [*parts, last] if last else parts


def _backward(descriptor: int, begin: int, count: int) -> List[Tuple[int, bytes]]:
    if count == 0 or begin == 0:
        return []
    first, until = log_limit.stretch_before(descriptor, begin)
    low = max(first, until - PAGE_BYTES)
    content = os.pread(descriptor, until - low, low)
    if until < begin:  # before a hole
        content = content.rstrip(b"\0")
    parts = _split(content)
    kept = parts[-count:]
    if low > 0 and len(kept) == len(parts) and len(parts) > 1:
        kept = kept[1:]  # its beginning lies before what was read
    at = low + len(content) - sum(len(part) for part in kept)
    lines = []
    for part in kept:
        lines.append((at, part))
        at += len(part)
    return lines


def _shown(at: int, raw: bytes) -> Dict[str, Any]:
    line = raw.rstrip(b"\r\n").strip(b"\0")
    text = line.rpartition(b"\r")[2].decode("utf-8", "replace")
    return {"at": at, "text": text[:LINE_CHARS], "chars": len(text)}


def _at_time(descriptor: int, status: os.stat_result, text: str) -> int:
    wanted = logtime.said(text, status.st_mtime)
    if wanted is None:
        raise VerbError("usage", f"'{text}' is not a time.", "Write 10:05, 10:05:30, 90m, 2h or 2026-11-30 10:05.")
    if _time_after(descriptor, 0, status) is None:
        raise VerbError("not_found", "The lines of this log carry no day and time.", "Search for a text instead, such as 10:05.")
    found = logtime.first_at(wanted, status.st_size, lambda at: _time_after(descriptor, at, status))
    return line_start(descriptor, found)


def _time_after(descriptor: int, at: int, status: os.stat_result) -> Optional[float]:
    """The time of the first line after ``at`` that has one, looking no further than 256 KiB."""
    begin, _ = log_limit.data_at(descriptor, at if at == 0 else at - 1, status.st_size)
    chunk = os.pread(descriptor, 256 << 10, begin)
    lines = chunk.split(b"\n")
    for line in lines if at == 0 else lines[1:]:
        found = logtime.of_line(line, status.st_mtime)
        if found is not None:
            return found
    return None
