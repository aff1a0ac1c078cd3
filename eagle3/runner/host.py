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
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from eagle3.runner import identity

DISK_DEADLINE_S = 3.0


def user() -> str:
    """The login name, or the number where there is no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def facts() -> Dict[str, Any]:
    """Name, system, processors and memory, with the container's own limits where it has some."""
    memory = _meminfo()
    return {
        "hostname": socket.gethostname(),
        "user": user(),
        "os": _os_name(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_limit": _cpu_limit(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "memory_total_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "memory_limit_bytes": _cgroup("memory.max", "memory/memory.limit_in_bytes"),
        "memory_used_bytes": _cgroup("memory.current", "memory/memory.usage_in_bytes"),
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
    found = in_parallel([functools.partial(_disk, path) for path in asked], DISK_DEADLINE_S)
    result: List[Dict[str, Any]] = []
    mounts = set()
    for path, disk in zip(asked, found):
        if disk is None:
            result.append({"path": path, "error": f"{path} did not answer within {DISK_DEADLINE_S:.0f} s"})
        elif disk.get("mount") not in mounts or not disk.get("mount"):
            mounts.add(disk.get("mount"))
            result.append(disk)
    return result


def in_parallel(calls: List[Callable[[], Dict[str, Any]]], deadline_s: float) -> List[Optional[Dict[str, Any]]]:
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


def _disk(path: str) -> Dict[str, Any]:
    place = Path(os.path.expanduser(path))  # noqa: PTH111 - an unknown ~user stays as it is
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        place = place.resolve()
        status = os.statvfs(place)
    except OSError as error:
        return {"path": path, "error": f"{path} cannot be asked: {error.strerror or error}"}
    mount, fstype = _mount(place)
    return {
        "path": path,
        "mount": mount,
        "fstype": fstype,
        "total_bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
        # btrfs and some others count none: not a lack of them
        "free_inodes": status.f_favail if status.f_files else None,
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "error": "",
    }


def _mount(place: Path) -> Tuple[str, str]:
    """The mount point that holds ``place``, and its type."""
    best = ("", "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            point = left.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")
            inside = str(place) == point or str(place).startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):  # of two on one point the later one is on top
                best = (point, right.split(" ")[0])
    return best


def _words(path: str) -> List[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="ascii", errors="replace").split()
    return []


def _meminfo() -> Dict[str, int]:
    result = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                result[key] = int(words[0]) * 1024
    return result


def _cgroup(v2: str, v1: str) -> Optional[int]:
    for path in (f"/sys/fs/cgroup/{v2}", f"/sys/fs/cgroup/{v1}"):
        words = _words(path)
        if words and words[0].isdigit():
            value = int(words[0])
            return value if value < 1 << 60 else None  # v1 says "no limit" by a huge number
    return None


def _cpu_limit() -> Optional[float]:
    words = _words("/sys/fs/cgroup/cpu.max")
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota, period = _words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _words("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and quota[0].isdigit():
        return int(quota[0]) / int(period[0])
    return None


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
