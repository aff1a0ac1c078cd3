"""Runs in the container, fed to its Python on stdin: receives the bundle, checks it, and puts it in place whole.

Standard library only, Python 3.8 or newer. It reads one line of JSON and then the payload; it writes one line, the marker
followed by JSON. Whatever happens, ``lib/<version>`` either does not exist or is complete: everything is unpacked under
another name and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import json
import marshal
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Dict, List  # noqa: UP035

KEEP = 2
STALE_S = 3600
SPARE_BYTES = 8 << 20
SPARE_INODES = 500
OTHER_PLACE = "Give a --workspace that can be written."


class Refused(Exception):
    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.answer = {"ok": False, "code": code, "text": text, "remedy": remedy}


def install(request: Dict[str, Any], stream: BinaryIO) -> Dict[str, Any]:  # noqa: UP006
    """Returns the answer; raises Refused or OSError."""
    workspace = Path(request["workspace"]).expanduser()
    lib = workspace / "lib"
    target = lib / request["version"]
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    lib.mkdir(exist_ok=True)
    if target.is_dir():
        return {"ok": True, "already": True, "path": str(target), "pruned": []}
    check_space(lib, request["unpacked_bytes"] + request["size"])
    payload = stream.read(request["size"])
    if len(payload) != request["size"] or hashlib.sha256(payload).hexdigest() != request["sha256"]:
        raise Refused("failed", "The upload arrived incomplete and was dropped.", "Connect again.")
    incoming = Path(tempfile.mkdtemp(prefix=".incoming-", dir=str(lib)))
    try:
        incoming.chmod(0o755)
        unpack(payload, incoming)
        try:
            incoming.rename(target)
        except OSError as error:
            # Another console was quicker with the same version, whose name is its contents.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        sync(lib)
    finally:
        shutil.rmtree(str(incoming), ignore_errors=True)
    return {"ok": True, "already": False, "path": str(target), "pruned": prune(workspace, lib, request["version"])}


def check_space(lib: Path, wanted: int) -> None:
    stat = os.statvfs(str(lib))
    free = stat.f_bavail * stat.f_frsize
    if stat.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, "read-only", str(lib))
    if free < wanted + SPARE_BYTES:
        text = f"The disk of {lib} has {free >> 20} MiB free and the helper needs {(wanted + SPARE_BYTES) >> 20}."
        raise Refused("disk", text, "Free some space there, or give another --workspace.")
    if stat.f_files and stat.f_favail < SPARE_INODES:
        raise Refused("disk", f"The disk of {lib} has no inodes left.", "Delete files there, or give another --workspace.")


def unpack(payload: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        for name in archive.namelist():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = archive.read(name)
            path.write_bytes(compiled(data) if name.endswith(".pyz") else data)
        # Written first, synced afterwards: the disk then takes them together instead of one by one.
        for name in archive.namelist():
            sync(folder / name)
    sync(folder)


def compiled(data: bytes) -> bytes:
    """The zipapp with byte code for this Python beside each source: Python cannot cache it there itself, and compiling
    at each start would be half of what a connect takes. Another Python finds a strange number in it and takes the source."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            text = source.read(info)
            target.writestr(info, text)
            if info.filename.endswith(".py") and info.filename != "__main__.py":
                code = marshal.dumps(compile(text, info.filename, "exec", dont_inherit=True))
                # Flag 1: identified by the source's hash, and not compared with it again at each import.
                head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(text)
                target.writestr(zipfile.ZipInfo(info.filename + "c", info.date_time), head + code, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def sync(path: Path) -> None:
    """A file's or a folder's contents, on the disk."""
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(workspace: Path, lib: Path, current: str) -> List[str]:  # noqa: UP006
    """Remove versions that nothing uses, except the newest few, and what an interrupted upload left behind."""
    versions = []
    for path in lib.iterdir():
        age = time.time() - path.stat().st_mtime
        if path.name.startswith(".incoming-"):
            if age > STALE_S:
                shutil.rmtree(str(path), ignore_errors=True)
        elif not path.name.startswith(".") and path.name != current:
            versions.append((age, path))
    pruned = []
    for _, path in sorted(versions)[KEEP:]:
        if not used_by_a_process(path) and not used_by_a_run(workspace, path.name):
            # Away in one step, so that nobody finds half of it.
            gone = lib / f".incoming-old-{path.name}"
            path.rename(gone)
            shutil.rmtree(str(gone), ignore_errors=True)
            pruned.append(path.name)
    return pruned


def used_by_a_process(path: Path) -> bool:
    needle = os.fsencode(str(path))
    processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
    return any(needle in read(process / name) for process in processes for name in ("cmdline", "environ"))


def used_by_a_run(workspace: Path, version: str) -> bool:
    """A run without an exit record may be live on another machine that shares this folder."""
    for run in (workspace / "runs").glob("*"):
        attempts = [attempt for attempt in (run / "attempts").glob("*") if attempt.name.isdigit()]
        last = max(attempts, key=lambda attempt: int(attempt.name), default=None)
        ended = last is not None and (last / "exit.json").exists()
        plans = [run / "launch.json", *([last / "launch.json"] if last is not None else [])]
        if not ended and any(os.fsencode(version) in read(plan) for plan in plans):
            return True
    return False


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        # Gone meanwhile, or another user's.
        return b""


def explain(error: OSError) -> Dict[str, Any]:  # noqa: UP006
    where = error.filename or "the workspace"
    if error.errno == errno.EROFS:
        return {"ok": False, "code": "disk", "text": f"{where} is read-only.", "remedy": OTHER_PLACE}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "quota is used up" if error.errno == errno.EDQUOT else "disk is full"
        return {"ok": False, "code": "disk", "text": f"The {what} at {where}.", "remedy": "Free some space there."}
    if error.errno in (errno.EACCES, errno.EPERM):
        return {"ok": False, "code": "permission", "text": f"{where} cannot be written by this user.", "remedy": OTHER_PLACE}
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        text = f"{where} is in the way: it is not a folder."
        return {"ok": False, "code": "failed", "text": text, "remedy": "Move it away, or give another --workspace."}
    if error.errno in (errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG):
        text = f"No folder can be made at {where}: {error.strerror}."
        return {"ok": False, "code": "failed", "text": text, "remedy": OTHER_PLACE}
    return {"ok": False, "code": "failed", "text": f"The helper could not be installed: {error}.", "remedy": ""}


def main() -> None:
    os.umask(0o022)
    stream = sys.stdin.buffer
    request = json.loads(stream.readline())
    try:
        answer = install(request, stream)
    except Refused as error:
        answer = error.answer
    except OSError as error:
        answer = explain(error)
    sys.stdout.write("\n" + request["marker"] + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
