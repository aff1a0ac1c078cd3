"""NOTES.md of a run and of a workspace: read, edited and appended to by people and by the product, none losing a line of
another's. The verb ``notes``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

from eagle3.runner import merge, rundir
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.folder_lock import locked

NAME = "NOTES.md"
LIMIT_BYTES = 1 << 20


def notes(folder: Path, op: str, args: Dict[str, Any]) -> Dict[str, Any]:
    """``read`` gives ``{"text","t"}``; ``write`` takes ``text`` and the ``base`` that it was made from, merges it with what
    others wrote meanwhile, and gives ``{"text","t","merged","conflicts"}``; ``append`` takes one ``line``. Raises VerbError."""
    if op == "read":
        return _read(folder)
    if op == "append":
        return append_once(folder, str(args["line"]))
    if op != "write":
        raise VerbError("usage", f"There is no way {op!r} to use notes.", "Use read or write.")
    return write(folder, str(args["base"]), str(args["text"]))


def write(folder: Path, base: str, text: str) -> Dict[str, Any]:
    """Put ``text``, an edit of ``base``, in place of the notes. What others changed since ``base`` stays."""
    if len(text.encode()) > LIMIT_BYTES:
        raise VerbError(
            "usage", f"The notes are longer than {LIMIT_BYTES >> 20} MiB and were not saved.", "Move a part to another file."
        )
    with locked(folder, NAME):
        now = _read(folder)["text"]
        lines, conflicts = merge.merge(_lines(base), _lines(now), _lines(text))
        made = "".join(line + "\n" for line in lines)
        try:
            rundir.write_bytes(folder / NAME, made.encode())
        except OSError as error:
            raise from_os_error(error, f"writing {folder / NAME}") from error
    return {**_read(folder), "merged": now != base, "conflicts": conflicts}


def append_once(folder: Path, line: str) -> Dict[str, Any]:
    """Add one line at the end, unless it is there: a line carries its time and its writer, so that the same one twice is the
    same note asked for again over a broken link. Gives ``{"text","t","already"}``. Raises VerbError."""
    line = " ".join(line.split())
    if not line:
        raise VerbError("usage", "The note is empty.", "Write a few words.")
    already = line in _lines(_read(folder)["text"])
    if not already:
        if len(_read(folder)["text"]) + len(line.encode()) > LIMIT_BYTES:
            raise VerbError("usage", f"The notes are longer than {LIMIT_BYTES >> 20} MiB.", "Move a part to another file.")
        try:
            append(folder, f"{line}\n")
        except OSError as error:
            raise from_os_error(error, f"writing {folder / NAME}") from error
    return {**_read(folder), "already": already}


def append(folder: Path, text: str) -> None:
    """Add ``text`` at the end, beginning on a line of its own. Raises VerbError, OSError."""
    with locked(folder, NAME):
        path = folder / NAME
        before = path.read_bytes() if path.exists() else b""
        gap = b"" if not before or before.endswith(b"\n") else b"\n"
        rundir.write_bytes(path, before + gap + text.encode())


def _lines(text: str) -> "list[str]":
    return text.splitlines()


def _read(folder: Path) -> Dict[str, Any]:
    path = folder / NAME
    try:
        status = path.stat()
        if status.st_size > LIMIT_BYTES:
            raise VerbError("usage", f"{path} is longer than {LIMIT_BYTES >> 20} MiB.", "Open it in an editor there.")
        return {"text": path.read_bytes().decode("utf-8", "replace"), "t": status.st_mtime}
    except FileNotFoundError:
        return {"text": "", "t": None}
    except OSError as error:
        raise from_os_error(error, f"reading {path}") from error
