"""Reading what was added to a run's files since the last look: the verb ``read``.

A token says how far a reader is: device, inode, offset, and a hash of the 64 bytes before the offset. Where the file
was replaced or truncated the token does not fit any more, and reading begins again at 0 with ``reset`` true.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Dict, Optional

from eagle3.runner import log_limit, state
from eagle3.runner.errors import VerbError, from_os_error

HASHED_BYTES = 64
DEFAULT_MAX_BYTES = 262_144
LIMIT_BYTES = 4 << 20
"""The most that one file gives in one reply, whatever is asked for."""

Token = Dict[str, Any]


def read(run_dir: Path, name: str, token: Optional[Token], max_bytes: int, whole: bool, ended: bool) -> Dict[str, Any]:
    """One file's increment: ``{"text","token","reset","missing","more"}``.

    Only whole lines come; a half one at the end is held back until it is complete, until it is longer than
    ``max_bytes``, or, in a log, until the run has ended. ``more`` is true where asking again at once gives more.
    ``whole`` gives the entire file. Bytes that are not UTF-8 come as U+FFFD.
    """
    path = confined(run_dir, name)
    limit = max(1, min(int(max_bytes), LIMIT_BYTES))
    try:
        # Not blocking: a FIFO that somebody put there must not hold the channel.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return {"text": "", "token": None, "reset": token is not None, "missing": True, "more": False}
    except OSError as error:
        raise from_os_error(error, f"reading {name} of the run {run_dir.name}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise VerbError("usage", f"{name} of the run {run_dir.name} is no file.", "Name a file of the run.")
        if whole:
            return _whole(descriptor, status, name)
        offset = _offset(descriptor, status, token)
        reset = token is not None and offset is None
        start = offset or 0
        # Of a log that was too long for the disk the middle is a hole: nothing to read, and no reason to stop.
        size = os.fstat(descriptor).st_size
        start, until = log_limit.data_at(descriptor, start, size)
        chunk = _pread(descriptor, min(limit, max(0, until - start)), start)
        cut = until < size and start + len(chunk) == until
        kept = chunk if cut else _whole_lines(chunk, limit, hold=not (ended and name.endswith(".log")))
        end = log_limit.data_at(descriptor, until, size)[0] if cut else start + len(kept)
        kept = kept.rstrip(b"\0") if cut else kept
        return {
            "text": kept.decode("utf-8", "replace"),
            "token": _token(descriptor, status, end),
            "reset": reset,
            "missing": False,
            "more": cut or (bool(kept) and len(chunk) == limit and os.fstat(descriptor).st_size > end),
        }
    finally:
        os.close(descriptor)


def confined(run_dir: Path, name: str) -> Path:
    """The path of ``name`` inside ``run_dir``; "run.log" is the last attempt's. Raises VerbError("usage") for others."""
    parts = Path(name).parts
    if not name or "\0" in name or Path(name).is_absolute() or ".." in parts or not parts:
        raise VerbError("usage", f"{name!r} is not a file of a run.", "Give a name inside the run directory.")
    if name == "run.log":
        numbers = state.attempts(run_dir)
        return state.attempt_dir(run_dir, numbers[-1] if numbers else 1) / "run.log"
    if any(part.startswith(".") for part in parts):  # half-written files, and the secrets of services that yielded
        raise VerbError("usage", f"{name!r} is hidden, so it is no file to read.", "Give a name inside the run directory.")
    path = run_dir.joinpath(*parts)
    root = run_dir.resolve()
    if root not in path.parent.resolve().joinpath(path.name).parents:
        raise VerbError("usage", f"{name!r} leads out of the run {run_dir.name}.", "Give a name inside the run directory.")
    return path


def _whole(descriptor: int, status: os.stat_result, name: str) -> Dict[str, Any]:
    if status.st_size > LIMIT_BYTES:
        raise VerbError("usage", f"{name} is too long to be read whole ({status.st_size} bytes).", "Read it in increments.")
    content = _pread(descriptor, LIMIT_BYTES, 0)
    token = _token(descriptor, status, len(content))
    return {"text": content.decode("utf-8", "replace"), "token": token, "reset": False, "missing": False, "more": False}


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def _hash(descriptor: int, offset: int) -> str:
    start = max(0, offset - HASHED_BYTES)
    return hashlib.sha256(_pread(descriptor, offset - start, start)).hexdigest()[:16]


def _token(descriptor: int, status: os.stat_result, offset: int) -> Token:
    return {"dev": status.st_dev, "ino": status.st_ino, "offset": offset, "hash": _hash(descriptor, offset)}


def _offset(descriptor: int, status: os.stat_result, token: Optional[Token]) -> Optional[int]:
    """Where the token's reader is, or None where the token is none of this file."""
    if not isinstance(token, dict):
        return None
    offset = token.get("offset")
    fits = (
        isinstance(offset, int)
        and 0 <= offset <= status.st_size
        and (token.get("dev"), token.get("ino")) == (status.st_dev, status.st_ino)
        and (
            token.get("hash") == _hash(descriptor, offset) or log_limit.taken_out(descriptor, offset - HASHED_BYTES, HASHED_BYTES)
        )
    )
    return offset if fits else None


def _whole_lines(chunk: bytes, limit: int, *, hold: bool) -> bytes:
    newline = chunk.rfind(b"\n")
    if newline >= 0 and (hold or len(chunk) == limit):
        return chunk[: newline + 1]
    if len(chunk) < limit:
        return b"" if hold else chunk
    # A line longer than a reply: as much of it as ends with a whole character.
    for back in range(1, min(4, len(chunk))):
        byte = chunk[-back]
        if byte >= 0xC0:  # the first byte of a character of 2, 3 or 4
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return chunk[:-back] if needs > back else chunk
        if byte < 0x80:
            break
    return chunk
