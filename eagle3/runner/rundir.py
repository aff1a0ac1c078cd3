"""The run directory's files: how they are named, written so that no reader ever sees half of one, and read.

JSON files are replaced whole (temporary file in the same folder, fsync, rename, fsync of the folder). JSONL files only
grow, one write a line. Files take the group's rights from their folder (0600 in a 0700 folder, 0660 in a 0770 one),
whatever the umask of the process is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, List, Union

from eagle3.runner.errors import VerbError

RUN_ID = re.compile(r"[a-z0-9-]{1,64}")
"""What a run may be called; use ``fullmatch``."""

MAX_LINE_BYTES = 4096
"""The longest line of a JSONL file, newline included: one write of this size is never torn on a local disk."""

PathLike = Union[str, "os.PathLike[str]"]

_CUT = "…"


def workspace_path(text: PathLike) -> Path:
    """The workspace as an absolute path: ``~`` expanded, links resolved. It need not exist.

    Raises VerbError("usage") for an empty text or an unknown ``~user``.
    """
    raw = os.fspath(text)
    if not raw or "\0" in raw:
        raise VerbError("usage", "The workspace has no name.", "Give a folder, for example ~/eagle3.")
    try:
        return Path(raw).expanduser().resolve()
    except RuntimeError as error:
        raise VerbError("usage", f"The workspace {raw} cannot be expanded: {error}.", "Give an absolute path.") from error


def run_path(workspace: PathLike, run_id: str) -> Path:
    """``<workspace>/runs/<run_id>``, which need not exist.

    Raises VerbError("usage") for an id that is not ``[a-z0-9-]{1,64}`` or one that is a link out of the workspace.
    """
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise VerbError("usage", f"{run_id!r} is not a run id.", "A run id has 1 to 64 characters out of a-z, 0-9 and '-'.")
    path = workspace_path(workspace) / "runs" / run_id
    if path.is_symlink():
        raise VerbError("usage", f"The run {run_id} is a link to another folder.", "Runs are real folders of the workspace.")
    return path


def runs(workspace: PathLike) -> List[Path]:
    """The run directories of a workspace, by name. A workspace that is not there has none."""
    folder = workspace_path(workspace) / "runs"
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if RUN_ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if (folder / name / "launch.json").is_file()]


def claim(path: PathLike, mode: int = 0o700) -> bool:
    """Make the folder ``path``; true for the one caller that made it, false for all others.

    Raises OSError where it can neither be made nor is there (a missing parent, a full disk).
    """
    target = Path(path)
    try:
        target.mkdir(mode=mode)
    except FileExistsError:
        return False
    target.chmod(mode)
    fsync_folder(target.parent)
    return True


def write_json(path: PathLike, obj: Any, durable: bool = True) -> None:
    """Replace the file ``path`` by ``obj`` as JSON, so that a reader sees the old or the new content, never half.

    With ``durable`` false the fsyncs are left out: still atomic for readers, but a power cut may lose it. NaN and
    infinite numbers become null. Raises OSError, with nothing left behind, where it cannot be written.
    """
    write_bytes(path, encode(obj) + b"\n", durable=durable)


def write_bytes(path: PathLike, content: bytes, durable: bool = True) -> None:
    """Replace the file ``path`` by ``content``, atomically as in ``write_json``."""
    target = Path(path)
    temporary = target.parent / f".{target.name}.{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(descriptor, _file_mode(target.parent))
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise
    if durable:
        fsync_folder(target.parent)


def read_json(path: PathLike, default: Any = None) -> Any:
    """The content of a JSON file, or ``default`` where it is missing or is not JSON (a foreign hand: ours are whole)."""
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return default


def read_object(path: PathLike) -> Any:
    """As ``read_json`` for a file that must hold an object: a dict in every case, empty where there is none."""
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def append_line(path: PathLike, obj: Any) -> None:
    """Append ``obj`` as one JSON line by one write of at most 4096 bytes.

    Where it would be longer, its string "detail" is cut first, then "text", then its longest other strings, each
    ending in "…". Raises ValueError where even that does not fit, OSError where it cannot be written. A half line that
    a full disk left is closed first, so that it costs one line and not two.
    """
    line = _fit(obj)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            with contextlib.suppress(PermissionError):  # the file of another member of the group
                os.fchmod(descriptor, _file_mode(Path(path).parent))
        elif _is_torn(descriptor):
            line = b"\n" + line
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
    finally:
        os.close(descriptor)


def _is_torn(descriptor: int) -> bool:
    """Whether the file ends in half a line for good: what another writer is just writing shows for a moment too."""
    for _ in range(4):
        size = os.fstat(descriptor).st_size
        if size == 0 or os.pread(descriptor, 1, size - 1) in (b"\n", b""):
            return False
        time.sleep(0.002)
    return True


def fsync_folder(folder: PathLike) -> None:
    """Make renames and new names in ``folder`` survive a power cut, where the file system can do so."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse fsync on folders; the rename stands
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_mode(folder: Path) -> int:
    return 0o600 | (stat.S_IMODE(folder.stat().st_mode) & 0o060)


def encode(obj: Any) -> bytes:
    """``obj`` as JSON; numbers that are not finite become null, a lone surrogate stays one."""
    try:
        text = json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(obj), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate (a file name that is not UTF-8) becomes \udcXX, which is JSON.
    return text.encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _fit(obj: Any) -> bytes:
    # One byte is kept for the newline that closes somebody's half line.
    limit = MAX_LINE_BYTES - 1
    line = encode(obj) + b"\n"
    if len(line) <= limit:
        return line
    if isinstance(obj, dict):
        row = dict(obj)
        strings = sorted((k for k, v in row.items() if isinstance(v, str)), key=lambda k: -len(row[k]))
        for key in [k for k in ("detail", "text") if k in strings] + [k for k in strings if k not in ("detail", "text")]:
            text, low, high = row[key], 0, len(row[key])
            while low < high:  # the longest beginning that fits
                middle = (low + high + 1) // 2
                row[key] = text[:middle] + _CUT
                low, high = (middle, high) if len(encode(row)) < limit else (low, middle - 1)
            row[key] = text[:low] + _CUT
            line = encode(row) + b"\n"
            if len(line) <= limit:
                return line
    raise ValueError(f"a line of {len(line)} bytes does not fit into {MAX_LINE_BYTES}")
