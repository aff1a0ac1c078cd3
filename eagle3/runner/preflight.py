"""What a launch checks before anything is made, and how the run directory comes into being whole."""

from __future__ import annotations

import contextlib
import grp
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from eagle3.runner import host, redact, rundir
from eagle3.runner.errors import VerbError, from_os_error

MIN_FREE_BYTES = 8 << 20
MIN_FREE_INODES = 64
STALE_S = 3600.0


def check_launch(launch: Dict[str, Any]) -> Dict[str, Any]:
    """``launch`` with argv[0] as an absolute path. Raises VerbError("usage") that names what is wrong with it."""
    argv = launch.get("argv") if isinstance(launch, dict) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
        raise VerbError("usage", "The launch has no command: 'argv' must be a list of strings.", "Give argv, the program first.")
    program = os.path.expanduser(argv[0])  # noqa: PTH111 - an unknown ~user stays as it is and is then not found
    found = shutil.which(program)
    if not argv[0] or found is None:
        raise VerbError(
            "usage",
            f"The program {argv[0]!r} cannot be run in this container: it is missing or not executable.",
            "Correct worker_python, or install the environment that it names.",
        )
    env = launch.get("env") or {}
    if not isinstance(env, dict):
        raise VerbError("usage", "The launch's 'env' must be an object of names and values.")
    for key, value in env.items():
        if not isinstance(value, str) or "=" in key or "\0" in key + value:
            raise VerbError("usage", f"The environment variable {key!r} cannot be set.", "Names and values are plain text.")
        if redact.is_secret_name(key):
            raise VerbError("usage", f"{key} looks like a secret and would be written to launch.json.", "Pass it as secret_env.")
    if launch.get("group"):
        _group_id(str(launch["group"]))
    return {**launch, "argv": [str(Path(found).absolute()), *argv[1:]]}


def check_secrets(secrets: Dict[str, str]) -> None:
    """Raises VerbError("usage") for secrets that cannot go through the pipe or into an environment."""
    for key, value in secrets.items():
        if not key or "=" in key or "\0" in key + value:
            raise VerbError("usage", f"The secret {key!r} cannot be set as an environment variable.")
    if sum(len(key) + len(value) * 6 + 8 for key, value in secrets.items()) > 60_000:
        raise VerbError("usage", "The secrets are too long.", "Pass at most some kilobytes; put larger ones into a file.")


def secret_names(launch: Dict[str, Any]) -> List[str]:
    """The names of the secrets that a run was started with, out of its launch.json: the values stand nowhere."""
    names = launch.get("secret_env")
    return [str(name) for name in names] if isinstance(names, list) else []


def check_secrets_given(run_id: str, launch: Dict[str, Any], secrets: Dict[str, str]) -> None:
    """Raises VerbError("usage") that names the secrets that the run was started with and that are not given now."""
    missing = [name for name in secret_names(launch) if name not in secrets]
    if missing:
        names = ", ".join(missing)
        raise VerbError(
            "usage",
            f"The run {run_id} was started with secrets that no file keeps, and now they are missing: {names}.",
            f"Give {names} again.",
        )


def check_disk(workspace: Path, need_bytes: int = MIN_FREE_BYTES) -> None:
    """Raises VerbError (disk, permission) where no run can be made in ``workspace``, which need not exist yet."""
    folder = workspace
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        raise VerbError("disk", f"The workspace {workspace} is on a read-only file system.", "Choose another workspace.")
    if not folder.is_dir():
        raise VerbError("usage", f"{folder} is a file, so {workspace} cannot be a workspace.", "Choose another workspace.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise VerbError("permission", f"{folder} may not be written by this user.", "Choose another workspace.")
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < need_bytes:
        raise VerbError(
            "disk",
            f"The disk of {workspace} is full: {free_bytes / 2**20:.1f} MiB free, a run begins with {need_bytes >> 20} MiB.",
            "Free some space or choose another workspace.",
        )
    if disk.f_files > 0 and disk.f_favail < MIN_FREE_INODES:
        raise VerbError(
            "disk",
            f"The disk of {workspace} has {disk.f_favail} free inodes left: no more files can be made.",
            "Delete some files or choose another workspace.",
        )


def check_prompts(prompts: Any) -> None:
    """Raises VerbError("usage") where the run's own prompts file cannot be read: it is the first thing that the worker reads,
    but by then services have yielded. ``prompts``: ``data.prompts`` of the spec; the shipped ones are always there."""
    if not isinstance(prompts, str) or prompts in ("", "builtin"):
        return
    path = Path(prompts)
    with contextlib.suppress(RuntimeError):  # an unknown ~user stays as it is and is then not found
        path = path.expanduser()
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise VerbError("usage", f"The prompts file {path} cannot be read ({error.strerror}).", "Set data.prompts.") from error


def check_needs(workspace: Path, needs: Any) -> None:
    """Raises VerbError("disk") where the disk has not the room that the whole run will take, by the estimate in the launch.

    ``needs``: ``{"bytes","inodes","what","keeps_bytes"}``; anything else asks for nothing.
    """
    if not isinstance(needs, dict):
        return
    folder = next(place for place in (workspace, *workspace.parents) if place.exists())
    disk = os.statvfs(folder)
    free_bytes, free_inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    need_bytes, keeps_bytes = int(needs.get("bytes") or 0), int(needs.get("keeps_bytes") or 0)
    if free_bytes - need_bytes < keeps_bytes:
        raise VerbError(
            "disk",
            f"{folder} has {_size(free_bytes)} free, and the run needs {_size(need_bytes)} "
            f"({needs.get('what') or 'all its files'}) and keeps {_size(keeps_bytes)} free (disk_floor_bytes).",
            "Free some space, choose another workspace, or lower data.train_prompts.",
        )
    if disk.f_files > 0 and free_inodes < int(needs.get("inodes") or 0):
        raise VerbError(
            "disk",
            f"The disk of {folder} has {free_inodes:,} free inodes, and the run makes about {int(needs['inodes']):,} files.",
            "Delete some files or choose another workspace.",
        )


def _size(count: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def make_run_dir(
    run_dir: Path,
    spec_toml: str,
    launch: Dict[str, Any],
    report: Optional[Dict[str, Any]],
    fill: Callable[[Path], None] = lambda folder: None,
) -> bool:
    """Make the run directory with its first files under another name and rename it; false where another was faster.

    ``fill`` may put more into it before it gets its name. Raises VerbError with nothing left behind.
    """
    workspace = run_dir.parent.parent
    check_disk(workspace)
    check_prompts(launch.get("prompts"))
    check_needs(workspace, launch.get("needs"))
    mode = 0o2770 if launch.get("group") else 0o700
    temporary = run_dir.parent / f".new-{run_dir.name}-{os.urandom(6).hex()}"
    try:
        if launch.get("group"):
            _open_to_group(workspace, str(launch["group"]))
        run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(run_dir.parent)
        for folder in (temporary, temporary / "attempts"):
            folder.mkdir(mode=0o700)
            if launch.get("group"):
                os.chown(folder, -1, _group_id(str(launch["group"])))
            folder.chmod(mode)
        rundir.write_bytes(temporary / "spec.toml", spec_toml.encode("utf-8"))
        rundir.write_json(temporary / "launch.json", launch)
        if report is not None:
            rundir.write_json(temporary / "report.json", report)
        fill(temporary)
        temporary.rename(run_dir)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if (run_dir / "launch.json").exists():
            return False  # a concurrent launch has made it, whole
        with contextlib.suppress(OSError):  # an empty folder that we made for nothing; others stay
            run_dir.parent.rmdir()
        raise from_os_error(error, f"making the run {run_dir.name} in {workspace}") from error
    except BaseException:  # Ctrl-C too
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    rundir.fsync_folder(run_dir.parent)
    return True


def _sweep(folder: Path) -> None:
    """Remove what launches that were killed while they made a run have left, once nobody can be at it any more."""
    for stale in folder.glob(".new-*"):
        with contextlib.suppress(OSError):  # another launch sweeps too
            if time.time() - stale.stat().st_mtime > STALE_S:
                shutil.rmtree(stale)


def _group_id(name: str) -> int:
    """Raises VerbError("usage") for a group that is not there or that this user cannot give files to."""
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise VerbError("usage", f"There is no group {name!r} in this container.", "Correct 'group' in the spec.") from error
    if os.geteuid() != 0 and number not in (os.getegid(), *os.getgroups()):
        text = f"{host.user()} is no member of the group {name!r}, so its runs cannot be shared with it."
        raise VerbError("usage", text, "Have the user added to the group and log in anew, or correct 'group' in the spec.")
    return number


def _open_to_group(workspace: Path, name: str) -> None:
    """Make the workspace and its ``runs`` folder the group's, 2770; the runs of others in it stay as closed as they are.

    Raises VerbError("permission") where the group could not get there, or another group has the workspace; OSError.
    """
    group = _group_id(name)
    for folder in workspace.parents:
        if folder.exists():
            found = folder.stat()
            if not found.st_mode & 0o001 and not (found.st_gid == group and found.st_mode & 0o010):
                text = f"The group {name!r} cannot enter {folder}, so it would not see a run in {workspace}."
                raise VerbError("permission", text, "Choose a workspace that the group can reach, or open that folder to it.")
    for folder in (workspace, workspace / "runs"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_gid == group and found.st_mode & 0o070 == 0o070:
            continue
        if found.st_uid != os.geteuid() or (found.st_gid != group and found.st_mode & 0o070 and found.st_gid != os.getegid()):
            text = f"The workspace {workspace} belongs to {folder.owner()} and is not open to the group {name!r}."
            raise VerbError("permission", text, f"Have {folder.owner()} open it, or choose another workspace.")
        os.chown(folder, -1, group)
        folder.chmod(found.st_mode & 0o7777 | 0o2770)
