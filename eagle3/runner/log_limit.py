"""A log that must not fill the disk: the middle of a long one is given back to the disk, its offsets stay valid.

The worker writes to its log directly (a pipe through the supervisor would end the run with the supervisor), so the file
cannot be rotated under it. Instead a hole is punched: the first and the last megabytes stay, the space between is freed, the
file keeps its length. A reader meets one line that says how much is gone, then what is newest.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Iterable, Iterator, Optional, Set, Tuple

LIMIT_BYTES = 256 << 20
"""Space on disk that a log may take before its middle is freed."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK_BYTES = 1 << 16
"""Holes begin and end at multiples of this: every file system's blocks divide it."""


class LogLimit:
    """Keeps each of a run's logs under ``limit_bytes``: an eighth of it is its beginning, half of it its end."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = max(limit_bytes, 16 * _BLOCK_BYTES)
        self._told: Set[Path] = set()

    def check(self, files: Iterable[Path]) -> Optional[Tuple[str, str]]:
        """Free what is too much; the first time for each file gives (level, sentence), otherwise None."""
        told = None
        for file in files:
            try:
                status = file.stat()
                if status.st_blocks * 512 <= self.limit_bytes:
                    continue
                problem = self._free(file, status.st_size)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = error.strerror or str(error)
            if file not in self._told:
                self._told.add(file)
                size = f"{file.name} has grown over {self.limit_bytes >> 20} MiB"
                if problem:
                    told = "error", f"{size} and cannot be shortened here ({problem}); it may fill the disk"
                else:
                    told = "warn", f"{size}: its middle is given back to the disk, its beginning and its end stay"
        return told

    def _free(self, file: Path, size: int) -> str:
        first = self.limit_bytes // 8 // _BLOCK_BYTES * _BLOCK_BYTES
        last = (size - self.limit_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            problem = _punch(descriptor, first, last - first) if last > first else ""
            if not problem:
                text = (
                    f"\nrunner: {last - first} bytes were taken out here, the log was too long for the disk; it goes on below.\n"
                )
                os.pwrite(descriptor, text.encode("ascii"), first)
            return problem
        finally:
            os.close(descriptor)


def _punch(descriptor: int, offset: int, length: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate", None)
    if fallocate is None:
        return "this system has no fallocate"
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length) != 0:
        return os.strerror(ctypes.get_errno())
    return ""


def data_at(descriptor: int, offset: int, size: int) -> Tuple[int, int]:
    """The next stretch of real bytes at or after ``offset`` in a file of ``size`` bytes, as (begin, end).

    Both are ``size`` where nothing follows. A file system that knows no holes has one stretch.
    """
    if offset >= size:
        return offset, offset
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        return begin, min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
    except OSError as error:
        # ENXIO: a hole up to the end. Anything else: no question that this file system answers.
        return (size, size) if error.errno == errno.ENXIO else (offset, size)


def stretches(descriptor: int) -> Iterator[Tuple[int, int]]:
    """The stretches of real bytes of a file, in order, as (begin, end): one or two for a log."""
    size = os.fstat(descriptor).st_size
    begin, end = data_at(descriptor, 0, size)
    while begin < end:
        yield begin, end
        begin, end = data_at(descriptor, end, size)


def stretch_before(descriptor: int, offset: int) -> Tuple[int, int]:
    """The last stretch of real bytes that begins before ``offset``, cut there; (0, 0) where there is none."""
    found = (0, 0)
    for begin, end in stretches(descriptor):
        if begin >= offset:
            break
        found = begin, min(end, offset)
    return found


def taken_out(descriptor: int, offset: int, size: int) -> bool:
    """Whether the whole stretch is a hole: what stood there was read before it was taken out."""
    return offset >= 0 and data_at(descriptor, offset, offset + size)[0] >= offset + size
