"""JSON-lines files of a stage's own: read with the line named when one is bad, written whole, or appended to so that a
killed worker costs at most the row it was writing.

Rows here may be long (a conversation, a token list), unlike the rows of ``metrics.jsonl`` and ``events.jsonl``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eagle3.runner import rundir

Row = dict[str, Any]


def encode(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace ``path`` by these rows, atomically and durably."""
    rundir.write_bytes(path, b"".join(encode(row) for row in rows))


def read_rows(path: Path) -> list[Row]:
    """All rows of a file that a stage left whole. Raises ValueError naming file and line for one that is not an object."""
    return list(_parsed(path, path.read_bytes()))


def read_whole_rows(path: Path) -> list[Row]:
    """The rows of a file that may have been cut off in the middle of its last line; empty when there is none.

    The torn end is cut off the file as well, so that the next row appended stands on a line of its own.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return list(_parsed(path, whole))


def read_rows_past_torn(path: Path) -> list[Row]:
    """The rows of a journal such as ``metrics.jsonl``, without lines that a kill or a full disk left half, wherever they are:
    the row after them was put on a line of its own. Empty when there is none. The file stays as it is."""
    rows: list[Row] = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        with contextlib.suppress(ValueError):  # half a row
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) else []
    return rows


def append_row(path: Path, row: Row) -> None:
    """Append one row, whole or not at all: half a row on a full disk would spoil the next one. The file has one writer."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    size = os.fstat(descriptor).st_size
    try:
        view = memoryview(encode(row))
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def _parsed(path: Path, content: bytes) -> Iterator[Row]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not an object")
        yield row
