"""The container's own limits, from control groups of either version: the tightest one on the way up to the root counts.

A container usually sees its group as the root of ``/sys/fs/cgroup``; a login of a plain machine sits some levels below, and a
limit may be set at any of them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

_UNLIMITED = 1 << 60
"""Version 1 says "no limit" by a huge number."""


def memory(root: Path = Path("/")) -> Dict[str, Any]:
    """``{"limit_bytes","used_bytes","oom_kills"}``, each None where there is none or it is not told."""
    limit: Optional[int] = None
    used: Optional[int] = None
    kills: Optional[int] = None
    for folder, version in _folders(root, "memory"):
        found = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        now = _number(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if found is not None and found < _UNLIMITED and (limit is None or found < limit):
            limit, used = found, now
        if used is None:
            used = now
        count = _field(folder / ("memory.events" if version == 2 else "memory.oom_control"), "oom_kill")
        if count is not None:
            kills = max(kills or 0, count)
    return {"limit_bytes": limit, "used_bytes": used, "oom_kills": kills}


def cpus(root: Path = Path("/")) -> Optional[float]:
    """Processors' worth of time that may be used at once; None without a limit."""
    limits = []
    for folder, version in _folders(root, "cpu"):
        if version == 2:
            words = _words(folder / "cpu.max")
            quota, period = (words[0], words[1]) if len(words) == 2 else ("max", "")
        else:
            quota, period = str(_number(folder / "cpu.cfs_quota_us")), str(_number(folder / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits) if limits else None


def processes(root: Path = Path("/")) -> Dict[str, Optional[int]]:
    """``{"limit","used"}``: how many tasks there may be in the container, and are."""
    limit: Optional[int] = None
    used: Optional[int] = None
    for folder, _ in _folders(root, "pids"):
        found = _number(folder / "pids.max")
        if found is not None and (limit is None or found < limit):
            limit, used = found, _number(folder / "pids.current")
    return {"limit": limit, "used": used}


def _folders(root: Path, controller: str) -> "Iterator[tuple[Path, int]]":
    """The folders of this process's group and of all above it, the root last, each with the version it belongs to."""
    base = root / "sys/fs/cgroup"
    groups = {2: "/", 1: "/"}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if number == "0" and not names:
                groups[2] = path
            elif controller in names.split(","):
                groups[1] = path
    for version, top in ((2, base), (1, base / controller)):
        parts: List[str] = [part for part in groups[version].split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = top.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder, version


def _words(path: Path) -> List[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").split()
    return []


def _number(path: Path) -> Optional[int]:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _field(path: Path, name: str) -> Optional[int]:
    words = _words(path)
    for key, value in zip(words[::2], words[1::2]):
        if key == name and value.isdigit():
            return int(value)
    return None
