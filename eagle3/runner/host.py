"""The machine as the container sees it: processors, memory, load, disks."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import platform
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from eagle3.runner import cgroups, identity, mounts

DISK_DEADLINE_S = 3.0


def user() -> str:
    """The login name, or the number where there is no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def facts(root: Path = Path("/")) -> Dict[str, Any]:
    """Name, system, processors and memory, with the container's own limits where it has some. ``root`` holds the ``proc``
    and ``sys`` that are read."""
    memory, group = _meminfo(root), cgroups.memory(root)
    return {
        "hostname": socket.gethostname(),
        "user": user(),
        "os": _os_name(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_limit": cgroups.cpus(root),
        "load": [round(x, 2) for x in os.getloadavg()],
        "memory_total_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "memory_limit_bytes": group["limit_bytes"],
        "memory_used_bytes": group["used_bytes"],
        "uptime_s": uptime_s(),
        "boot_id": identity.boot_id(),
        "container": _container(),
    }


def uptime_s() -> float:
    """Seconds since the machine started; 0 where the kernel does not say."""
    words = _words("/proc/uptime")
    return float(words[0]) if words else 0.0


def disks(paths: Iterable[str]) -> List[Dict[str, Any]]:
    """Free bytes and inodes of the file systems of ``paths``, each once. One that hangs (NFS) is said to hang."""
    asked = list(dict.fromkeys(paths))
    found = in_parallel([functools.partial(disk, path) for path in asked], DISK_DEADLINE_S)
    result: List[Dict[str, Any]] = []
    seen = set()
    for path, answer in zip(asked, found):
        if answer is None:
            result.append({"path": path, "error": f"{path} did not answer within {DISK_DEADLINE_S:.0f} s"})
        elif answer.get("mount") not in seen or not answer.get("mount"):
            seen.add(answer.get("mount"))
            result.append(answer)
    return result


def in_parallel(calls: Sequence[Callable[[], Dict[str, Any]]], deadline_s: float) -> List[Optional[Dict[str, Any]]]:
    """The answers of ``calls``, each in a thread of its own; None for one that has not answered in time."""
    answers: List[Optional[Dict[str, Any]]] = [None] * len(calls)

    def work(index: int) -> None:
        answers[index] = calls[index]()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(answers)


def disk(path: str) -> Dict[str, Any]:
    """The file system that holds ``path`` or, where that is not there yet, the folder that it would be made in."""
    place = Path(os.path.expanduser(path))  # noqa: PTH111 - an unknown ~user stays as it is
    try:
        place = existing(place)
        status = os.statvfs(place)
    except OSError as error:
        return {"path": path, "error": f"{path} cannot be asked: {error.strerror or error}"}
    mount = mounts.holding(place)
    return {
        "path": path,
        "mount": mount.point,
        "fstype": mount.fstype,
        "total_bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
        # btrfs and some others count none: not a lack of them
        "free_inodes": status.f_favail if status.f_files else None,
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "error": "",
    }


def existing(place: Path) -> Path:
    """``place``, or the nearest folder above it that is there, links resolved. Raises OSError."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.resolve()


def _words(path: str) -> List[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="ascii", errors="replace").split()
    return []


def _meminfo(root: Path) -> Dict[str, int]:
    result = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                result[key] = int(words[0]) * 1024
    return result


def _os_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip().strip('"')
    return platform.system()


def _container() -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "kubernetes" if os.environ.get("KUBERNETES_SERVICE_HOST") else ""
