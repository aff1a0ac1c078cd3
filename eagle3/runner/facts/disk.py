"""Section "disk": every path that a run writes, what it needs there, and what could be freed. Reads only."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from eagle3.runner import host, mounts, rundir, state
from eagle3.runner.facts import places

PATH_LIMIT_S = 3.0
QUOTA_LIMIT_S = 3.0
WALK_LIMIT_S = 3.0
WALK_ENTRIES = 50_000
_STALE_S = 3600.0


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """``{"paths":[…],"needs":[…],"quota":[…],"freeable":{…}}``. A path that hangs (a dead NFS server) says so and holds up
    nothing else."""
    workspace = str(wants.get("workspace") or "~/eagle3")
    asked = list(dict.fromkeys([workspace, *map(str, wants.get("paths") or []), *_need_paths(wants)]))
    limit_s = PATH_LIMIT_S * float(wants.get("patience") or 1.0)
    answers = host.in_parallel([functools.partial(_path, text, root) for text in asked], limit_s)
    late = f"did not answer within {limit_s:.0f} s; its server may be gone"
    paths = [
        answer if answer is not None else {"asked": text, "path": text, "error": f"{text} {late}"}
        for text, answer in zip(asked, answers)
    ]
    mount_of = {entry["asked"]: entry.get("mount") or "" for entry in paths}
    needs = [
        {**need, "mount": mount_of.get(str(need.get("path")), "")}
        for need in wants.get("needs") or []
        if not _there_already(need)
    ]
    more = host.in_parallel(
        [lambda: {"found": quotas()}, lambda: freeable(workspace)], max(QUOTA_LIMIT_S, WALK_LIMIT_S) + limit_s
    )
    found, free = more
    return {"paths": paths, "needs": needs, "quota": (found or {"found": []})["found"], "freeable": free}


def _there_already(need: Dict[str, Any]) -> bool:
    return bool(need.get("unless")) and places.expand(str(need["unless"])).exists()


def _need_paths(wants: Dict[str, Any]) -> List[str]:
    return [str(need["path"]) for need in wants.get("needs") or [] if need.get("path")]


def _path(text: str, root: Path) -> Dict[str, Any]:
    """The file system of a path as asked for, with how it is mounted and whether this user may write there."""
    place = places.expand(text)
    entry: Dict[str, Any] = {"asked": text, **host.disk(str(place))}
    if entry["error"]:
        return entry
    folder = host.existing(place)
    mount = mounts.holding(folder, root)
    status = os.statvfs(folder)
    entry.update(
        path=str(place),
        there=place.exists(),
        folder=str(folder),
        is_folder=folder.is_dir(),
        writable=os.access(folder, os.W_OK | os.X_OK),
        mount=mount.point or entry["mount"],
        fstype=mount.fstype or entry["fstype"],
        source=mount.source,
        options=mount.options,
        network=(mount.fstype or entry["fstype"]) in mounts.NETWORK,
        noexec="noexec" in mount.options or bool(status.f_flag & getattr(os, "ST_NOEXEC", 8)),
        total_inodes=status.f_files or None,
    )
    return entry


def quotas() -> List[Dict[str, Any]]:
    """This user's quotas, as the command ``quota`` tells them: bytes and files used and allowed, by file system. None where
    there is no such command; statvfs does not know of quotas."""
    tool = shutil.which("quota")
    if tool is None:
        return []
    command = [tool, "--no-wrap", "--raw-grace", "--show-mntpoint", "--hide-device", "-u"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=QUOTA_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"mount": "", "error": f"the command quota gave no answer: {type(error).__name__}"}]
    return list(_quota_lines(done.stdout.decode("utf-8", "replace")))


def _quota_lines(text: str) -> Iterator[Dict[str, Any]]:
    for line in text.splitlines():
        words = line.split()
        # Mount, blocks of 1 KiB, their soft and hard limit, grace; files, soft, hard, grace. A star marks what is exceeded.
        numbers = [word.rstrip("*") for word in words[1:]]
        if len(words) >= 8 and words[0].startswith("/") and all(n.isdigit() for n in numbers[:3]):
            blocks, _, hard = (int(n) for n in numbers[:3])
            rest = [int(n) for n in numbers[4:7] if n.isdigit()]
            files, files_hard = (rest[0], rest[2]) if len(rest) == 3 else (0, 0)
            yield {
                "mount": words[0],
                "used_bytes": blocks * 1024,
                "limit_bytes": hard * 1024 or None,
                "used_files": files,
                "limit_files": files_hard or None,
                "error": "",
            }


def freeable(workspace: str) -> Dict[str, Any]:
    """What could be deleted in the workspace, with sizes: runs that have ended, left-over states, old helper versions and
    environments. ``complete`` is false where the walk was cut short. ``items`` are the largest first."""
    home = rundir.workspace_path(workspace)
    walk = _Walk(time.monotonic() + WALK_LIMIT_S, WALK_ENTRIES)
    items: List[Dict[str, Any]] = []
    now = time.time()
    for run_dir in rundir.runs(workspace):
        status = _run_state(run_dir, now)
        if status not in state.LIVE:
            raw = walk.size(run_dir / "states" / "raw")
            whole = walk.size(run_dir)
            items.append(_item(run_dir, f"run, {status}", whole, leftover=False))
            if raw[0]:
                items.append(_item(run_dir / "states" / "raw", "left-over raw states of an ended run", raw, leftover=True))
    versions = sorted(_folders(home / "lib"), key=lambda folder: -folder.stat().st_mtime)
    for folder in versions[1:]:
        items.append(_item(folder, "an older version of the helper", walk.size(folder), leftover=True))
    for folder in _folders(home / "env"):
        items.append(_item(folder, "an environment that was built here", walk.size(folder), leftover=False))
    for folder in (home / "runs").glob(".new-*"):
        if now - folder.stat().st_mtime > _STALE_S:
            items.append(_item(folder, "a run that was never made whole", walk.size(folder), leftover=True))
    items.sort(key=lambda item: -item["bytes"])
    leftovers = sum(item["bytes"] for item in items if item["leftover"])
    runs = sum(item["bytes"] for item in items if item["what"].startswith("run, "))
    total = {"items": items[:30], "leftover_bytes": leftovers, "runs_bytes": runs, "versions": len(versions)}
    return {"workspace": str(home), **total, "complete": walk.complete}


def _run_state(run_dir: Path, now: float) -> str:
    try:
        return str(state.summary(run_dir, now)["state"])
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return "unknown"


def _item(path: Path, what: str, size: Tuple[int, int], *, leftover: bool) -> Dict[str, Any]:
    return {"path": str(path), "what": what, "bytes": size[0], "entries": size[1], "leftover": leftover}


def _folders(parent: Path) -> List[Path]:
    try:
        return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.is_symlink() and entry.name[0] != "."]
    except OSError:
        return []


class _Walk:
    """Sizes of trees, until the time or the number of entries is used up. Links are not followed."""

    def __init__(self, end: float, entries: int) -> None:
        self._end = end
        self._left = entries
        self.complete = True

    def size(self, top: Path) -> Tuple[int, int]:
        """Bytes on disk and number of entries below ``top``."""
        held = entries = 0
        stack: List[Path] = [top]
        while stack:
            folder = stack.pop()
            with contextlib.suppress(OSError), os.scandir(folder) as found:  # it may go while we look
                for entry in found:
                    if self._left <= 0 or time.monotonic() > self._end:
                        self.complete = False
                        return held, entries
                    self._left -= 1
                    entries += 1
                    status: Optional[os.stat_result] = None
                    with contextlib.suppress(OSError):  # the same
                        status = entry.stat(follow_symlinks=False)
                    held += status.st_blocks * 512 if status else 0
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
        return held, entries
