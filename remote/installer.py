"""Runs in the container, fed to its Python on stdin: receives the bundle, checks it, and puts it in place whole.

Standard library only, Python 3.8 or newer. It reads one line of JSON and then the payload; it writes one line, the marker
followed by JSON. Whatever happens, ``lib/<version>`` either does not exist or is complete: everything is unpacked under
another name and renamed; what was damaged later is put right file by file.
"""

from __future__ import annotations

import contextlib
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
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Dict, List  # noqa: UP035

KEEP = 2
STALE_S = 3600
SPARE_BYTES = 8 << 20
SPARE_INODES = 500
MANIFEST = "MANIFEST.json"
"""The SHA-256 of each file, by which the helper sees whether its version is still whole (`eagle3.runner.intact`)."""
INCOMING = ".incoming-"
OTHER_PLACE = "Give a --workspace that can be written."


class Refused(Exception):
    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.answer = {"ok": False, "code": code, "text": text, "remedy": remedy}


def install(request: Dict[str, Any], stream: BinaryIO) -> Dict[str, Any]:  # noqa: UP006
    """Returns {"ok", "already", "path", "pruned", "repaired"}; raises Refused or OSError. Nothing is written before
    the place has been looked at and the payload has arrived whole."""
    workspace = Path(request["workspace"]).expanduser()
    lib = workspace / "lib"
    target = lib / request["version"]
    there = target.is_dir()
    if not there:
        check_place(lib, request["unpacked_bytes"] + request["size"])
    payload = stream.read(request["size"])
    if len(payload) != request["size"] or hashlib.sha256(payload).hexdigest() != request["sha256"]:
        raise Refused("failed", "The upload arrived incomplete and was dropped.", "Connect again.")
    pruned: List[str] = []  # noqa: UP006
    repaired: List[str] = []  # noqa: UP006
    if not there and place(payload, lib, target, request["unpacked_bytes"] + request["size"]):
        pruned = prune(workspace, lib, request["version"])
    else:
        # It is there, and whoever asks could not start it; or another console was quicker.
        repaired = repair(payload, target)
        there = not repaired
    return {"ok": True, "already": there, "path": str(target), "pruned": pruned, "repaired": repaired}


def check_place(lib: Path, wanted: int) -> None:
    """Raises Refused or OSError where ``wanted`` bytes cannot be put into ``lib``, which need not exist yet."""
    folder = lib
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise OSError(errno.ENOTDIR, "not a folder", str(folder))
    stat = os.statvfs(str(folder))
    free = stat.f_bavail * stat.f_frsize
    if stat.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, "read-only", str(folder))
    if not os.access(str(folder), os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "not writable", str(folder))
    if free < wanted + SPARE_BYTES:
        text = f"The disk of {folder} has {free >> 20} MiB free and the helper needs {(wanted + SPARE_BYTES) >> 20}."
        raise Refused("disk", text, "Free some space there, or give another --workspace.")
    if stat.f_files and stat.f_favail < SPARE_INODES:
        text = f"The disk of {folder} has room for {stat.f_favail} files more and the helper needs {SPARE_INODES}."
        raise Refused("disk", text, "Delete files there, or give another --workspace.")


def place(payload: bytes, lib: Path, target: Path, wanted: int) -> bool:
    """Unpack under another name and rename; False where somebody else has done so meanwhile. A failure leaves neither
    files nor the folders that were made for them."""
    made = make_folders(lib)
    done = False
    try:
        incoming = Path(tempfile.mkdtemp(prefix=INCOMING, dir=str(lib)))
        try:
            incoming.chmod(0o755)
            reserve(incoming / ".room", wanted)
            unpack(payload, incoming)
            try:
                incoming.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                return False
            sync(lib)
            done = True
        finally:
            shutil.rmtree(str(incoming), ignore_errors=True)
    finally:
        for folder in [] if done else made:
            with contextlib.suppress(OSError):  # somebody else has put something there
                folder.rmdir()
    return True


def make_folders(lib: Path) -> List[Path]:  # noqa: UP006
    """Make ``lib`` and what is missing above it, the workspace for this user alone. Gives what was made, innermost first."""
    missing = []
    folder = lib
    while not folder.exists() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o755 if folder == lib else 0o700, exist_ok=True)
    return missing


def reserve(path: Path, wanted: int) -> None:
    """Take the room once, and give it back: a quota shows in no other way, and shall show before the first file."""
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, wanted)
    finally:
        os.close(descriptor)
        path.unlink()


def unpack(payload: bytes, folder: Path) -> None:
    sums = {}
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        for name in archive.namelist():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = archive.read(name)
            data = compiled(data) if name.endswith(".pyz") else data
            path.write_bytes(data)
            sums[name] = hashlib.sha256(data).hexdigest()
        (folder / MANIFEST).write_text(json.dumps({"v": 1, "files": sums}))
        # Written first, synced afterwards: the disk then takes them together instead of one by one.
        for name in [*archive.namelist(), MANIFEST]:
            sync(folder / name)
    sync(folder)


def repair(payload: bytes, target: Path) -> List[str]:  # noqa: UP006
    """Put right, one by one, the files of ``target`` that are not what ``payload`` holds. Gives their names."""
    repaired = []
    sums = {}
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        for name in archive.namelist():
            data, there = archive.read(name), read(target / name)
            if name.endswith(".pyz") and same_program(there, data):
                data = there
            elif name.endswith(".pyz"):
                data = compiled(data)
            if data != there:
                replace(target / name, data)
                repaired.append(name)
            sums[name] = hashlib.sha256(data).hexdigest()
    manifest = json.dumps({"v": 1, "files": sums}).encode()
    if read(target / MANIFEST) != manifest:
        replace(target / MANIFEST, manifest)
        repaired.append(MANIFEST)
    if not repaired:
        with contextlib.suppress(OSError):  # somebody else's folder; it only looks older than it is
            os.utime(str(target))
    return repaired


def replace(path: Path, data: bytes) -> None:
    """Whoever runs from this folder sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        raise
    sync(path.parent)


def same_program(one: bytes, other: bytes) -> bool:
    """Whether two zipapps hold the same sources, each whole. Their byte code may be another Python's."""
    try:
        return sources(one) == sources(other)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError):
        return False


def sources(data: bytes) -> Dict[str, bytes]:  # noqa: UP006
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return {name: text for name, text in contents.items() if not name.endswith(".pyc")}


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
        if path.name.startswith(INCOMING):
            if age > STALE_S:
                shutil.rmtree(str(path), ignore_errors=True)
        elif not path.name.startswith(".") and path.name != current:
            versions.append((age, path))
    pruned = []
    for _, path in sorted(versions)[KEEP:]:
        if not used_by_a_process(path) and not used_by_a_run(workspace, path.name):
            # Away in one step, so that nobody finds half of it.
            gone = lib / f"{INCOMING}old-{path.name}"
            path.rename(gone)
            shutil.rmtree(str(gone), ignore_errors=True)
            pruned.append(path.name)
    return pruned


def used_by_a_process(path: Path) -> bool:
    # Not the whole path: a process may have come to it through another name of the workspace.
    needle = os.fsencode(f"/lib/{path.name}/")
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
