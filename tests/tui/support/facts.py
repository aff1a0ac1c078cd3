"""Facts as the helper gathers them, small: what the host section says of a sound machine, and ways to spoil it."""

from __future__ import annotations

import copy
from typing import Any

from tests.tui.support.folders import NOW

GIB = 1 << 30

HOST: dict[str, Any] = {
    "hostname": "box", "user": "tests", "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-amd64", "arch": "x86_64",
    "python": "3.11.7", "cpus": 2, "cpu_limit": None, "load": [0.4, 0.4, 0.4], "memory_total_bytes": 24 * GIB,
    "memory_available_bytes": 20 * GIB, "memory_limit_bytes": None, "memory_used_bytes": 4 * GIB, "uptime_s": 12589.5,
    "boot_id": "5f540f47", "container": "docker", "oom_kills": 0, "tasks": {"limit": None, "used": None},
    "libc": "glibc 2.36", "shm": {"path": "/dev/shm", "total_bytes": 24 * GIB, "free_bytes": 24 * GIB, "error": ""},
    "limits": {"nofile": 20000, "nproc": 96365, "memlock": 8388608},
    "shell": {"path": "/bin/bash", "took_s": 0.2, "out_bytes": 0, "err_bytes": 0, "sample": "", "error": ""},
    "proxy": {"no_proxy": ""}, "sessions": [], "helpers": [], "stuck": [], "zombies": {"count": 0, "parents": {}},
    "visible_devices": None, "took_s": 0.42,
}  # fmt: skip
"""Only the host: the other sections are then unknown, so that the verdict is "ready with warnings"."""

LITTLE = {"memory_available_bytes": GIB}
"""Too little memory for any run: ``host.memory`` fails."""


def facts(**host: Any) -> dict[str, Any]:
    """The facts of a sound machine with ``host`` fields changed."""
    return {
        "now": NOW, "local_now": NOW, "round_trip_s": 0.01, "host": {**copy.deepcopy(HOST), **host},
    }  # fmt: skip
