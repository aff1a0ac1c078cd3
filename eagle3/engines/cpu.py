"""What makes a vLLM server fast on a machine without a GPU."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cpu_environment(python: str, *, quota_file: Path = _QUOTA) -> dict[str, str]:
    """Environment of a server run by ``python``: every core used, and one process less to start."""
    env = {
        # The engine does the work itself instead of starting a worker, which would import everything once more: 13 s.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(usable_cores(quota_file=quota_file)),
        # For a server with workers after all: else one core is kept back, and on two cores that is half of the machine.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }
    library = Path(python).parent.parent / "lib" / "libiomp5.so"
    if library.is_file():
        # Intel's OpenMP: without it speculative decoding on a CPU is much slower. Idle threads sleep after 1 ms, so that
        # whatever else the machine does is not held up by threads that spin.
        env |= {"LD_PRELOAD": str(library), "KMP_BLOCKTIME": "1", "KMP_TPAUSE": "0"}
    return env


def usable_cores(*, quota_file: Path = _QUOTA) -> int:
    """Physical cores that this process may use: its affinity, and the container's quota, count."""
    cores = len(os.sched_getaffinity(0))
    physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
    if physical and logical and physical < logical:
        cores = max(1, cores * physical // logical)
    try:
        limit, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if limit == "max" else max(1, min(cores, math.ceil(int(limit) / int(period))))
