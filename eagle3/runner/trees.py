"""Folders of the workspace, looked at before they are deleted: exactly what was listed goes, and nothing through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

from eagle3.runner import host, identity, proctable, rundir, state
from eagle3.runner.errors import VerbError
from eagle3.runner.rundir import PathLike

MAX_ENTRIES = 2_000_000


class Entry(NamedTuple):
    """A file, link or folder below (or at, ``""``) the root of a listing."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    folder: bool


def inside(workspace: PathLike, text: str) -> Path:
    """``text`` (absolute, or relative to the workspace) as a path whose every link is resolved but the last part's.

    Raises VerbError(usage) where it is not strictly inside the workspace, is a link itself, or is not there.
    """
    home = rundir.workspace_path(workspace)
    if not text or "\0" in text:
        raise VerbError("usage", "A path without a name cannot be deleted.", "Pick something from the preview.")
    raw = home / os.path.expanduser(text)  # noqa: PTH111 - an unknown ~user stays as it is
    if raw.name in ("", ".", ".."):
        raise VerbError("usage", f"{text} does not name a thing inside the workspace.", "Pick something from the preview.")
    path = raw.parent.resolve() / raw.name
    if home not in path.parents:
        raise VerbError("usage", f"{text} is not inside the workspace {home}.", "Delete it by hand if you mean it.")
    if path.is_symlink():
        raise VerbError("usage", f"{text} is a link to {os.readlink(path)}.", "Links are left alone; pick the thing itself.")  # noqa: PTH115
    if not path.exists():
        raise VerbError("not_found", f"{text} is not there.", "Ask for the preview again.")
    return path


def protected(workspace: PathLike, path: Path, now: float) -> str:
    """Why ``path`` must stay; empty where it may go."""
    home = rundir.workspace_path(workspace)
    parts = path.relative_to(home).parts
    if parts[0] == "lib":
        return "the helper runs from there"
    if len(parts) == 1 and parts[0] in ("runs", "checks", "env"):
        return "it is a folder of the workspace itself; pick what is inside"
    if parts[0] == "runs":
        run_dir = home / "runs" / parts[1]
        found = state.summary(run_dir, now)["state"] if (run_dir / "launch.json").is_file() else ""
        if found in state.LIVE:
            return f"the run {parts[1]} is {found}"
    users = users_of(path)
    if users:
        return "in use by " + ", ".join(f"{pid} {name}" for pid, name in users[:3])
    return ""


def users_of(folder: Path) -> List[Tuple[int, str]]:
    """Live processes, this one left out, that run from ``folder``, work in it, or have a library of it in memory.

    Another user's process shows its command line only: seen where it was started by a path inside.
    """
    place = str(folder)
    inner = place.rstrip("/") + "/"

    def within(text: str) -> bool:
        return text == place or text.startswith(inner)

    found = []
    for process in proctable.snapshot().values():
        if process.pid == os.getpid() or not proctable.is_live(process):
            continue
        command = proctable.command_line(process.pid)
        environment = proctable.environment(process.pid)
        texts = [*command[:2], environment.get("VIRTUAL_ENV", "")]
        for link in ("exe", "cwd"):
            try:
                texts.append(os.readlink(identity.PROC / str(process.pid) / link))  # noqa: PTH115 - its text, resolved or not
            except OSError:
                continue  # another user's, or it has just ended
        if any(within(text) for text in texts) or inner in _maps(process.pid):
            found.append((process.pid, proctable.name(process.pid)[:80]))
    return found


def listing(root: Path) -> List[Entry]:
    """Everything below ``root`` and itself, links not followed. Raises OSError, VerbError where there is too much or where
    another file system is mounted inside."""
    found: List[Entry] = []
    first = root.lstat()

    def add(path: Path, name: str) -> None:
        about = path.lstat()
        if about.st_dev != first.st_dev:
            raise VerbError("usage", f"Another file system is mounted at {path}.", "Unmount it, or delete by hand.")
        folder = stat.S_ISDIR(about.st_mode)
        size = 0 if folder else about.st_blocks * 512 if about.st_nlink == 1 else 0
        found.append(Entry(name, about.st_dev, about.st_ino, size, 0 if folder else about.st_mtime_ns, folder))
        if len(found) > MAX_ENTRIES:
            raise VerbError("usage", f"{root} holds more than {MAX_ENTRIES:,} files.", "Delete it by hand.")
        if folder:
            for child in sorted(path.iterdir()):
                add(child, f"{name}/{child.name}" if name else child.name)

    add(root, "")
    return found


def remove(root: Path, entries: List[Entry]) -> Dict[str, Any]:
    """Delete exactly ``entries``: what is new, was changed or was put in its place since stays and is named.

    ``{"files","bytes","left": [[path, why]]}``. Each step is taken from the folder above by its descriptor, so that a
    folder swapped for a link meanwhile leads nowhere.
    """
    wanted = {entry.path: entry for entry in entries}
    told: Dict[str, Any] = {"files": 0, "bytes": 0, "left": []}
    parent = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _remove(parent, root.name, "", wanted, told, root)
    finally:
        os.close(parent)
    return told


def _remove(parent: int, name: str, at: str, wanted: Dict[str, Entry], told: Dict[str, Any], root: Path) -> None:
    shown = str(root / at) if at else str(root)
    try:
        about = os.stat(name, dir_fd=parent, follow_symlinks=False)
        entry = wanted.get(at)
        if entry is None or (about.st_dev, about.st_ino) != (entry.device, entry.inode):
            told["left"].append([shown, "it was not in the preview"])
        elif not entry.folder and about.st_mtime_ns != entry.mtime_ns:
            told["left"].append([shown, "it has changed since the preview"])
        elif not entry.folder:
            os.unlink(name, dir_fd=parent)
            told["files"] += 1
            told["bytes"] += entry.size
        else:
            _remove_folder(parent, name, at, wanted, told, root)
    except OSError as error:
        told["left"].append([shown, error.strerror or str(error)])


def _remove_folder(parent: int, name: str, at: str, wanted: Dict[str, Entry], told: Dict[str, Any], root: Path) -> None:
    before = len(told["left"])
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.scandir(folder) as children:
            names = [child.name for child in children]
        for child in names:
            _remove(folder, child, f"{at}/{child}" if at else child, wanted, told, root)
    finally:
        os.close(folder)
    if len(told["left"]) == before:
        os.rmdir(name, dir_fd=parent)


def _maps(pid: int) -> str:
    try:
        return (identity.PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write on the file system of ``path``."""
    return int(host.disks([str(path)])[0].get("free_bytes") or 0)
