"""``heartbeat.json``: what the processes of a run use, written by its supervisor every few seconds."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from eagle3.runner import gpu, identity, proctable, rundir
from eagle3.runner.errors import complain
from eagle3.runner.identity import Stat

GPU_EVERY_BEATS = 3
"""Asking NVML starts a process: not at every beat."""

_MAX_PROCESSES = 256


class Heartbeat:
    """Beats at most every ``every_s`` seconds. Cheap: one walk over /proc; GPUs are asked in a thread."""

    def __init__(self, run_dir: Path, attempt: int, *, every_s: float = 10.0, clock: Callable[[], float] = time.time) -> None:
        self._run_dir = run_dir
        self._file = run_dir / "attempts" / str(attempt) / "heartbeat.json"
        self._attempt = attempt
        self._every_s = every_s
        self._clock = clock
        self._next = 0.0
        self._count = 0
        self._gpu_next = 0.0
        self._gpu_bytes: Dict[int, int] = {}
        self._gpu_known = False
        self._gpu_thread: Optional[threading.Thread] = None
        self._complained = False
        self.seen: Set[proctable.Process] = set()
        """Every process of the run that a beat saw, so that one that left the tree is still known at the end."""
        self.disk_free_bytes: Optional[int] = None
        self.gpu_report: Optional[Dict[str, Any]] = None
        """The newest answer about the GPUs; None before the first."""

    def beat(self, find: Callable[[Dict[int, Stat]], Iterable[Stat]]) -> None:
        """Write a heartbeat if it is time. ``find`` picks the run's processes from a snapshot of the process table."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        self._count += 1
        processes = list(find(proctable.snapshot()))
        self.seen = {p for p in self.seen if identity.is_running(*p)}.union((p.pid, p.start_ticks) for p in processes)
        self._ask_gpus()
        pids = {p.pid for p in processes}
        own_bytes = sum(b for pid, b in self._gpu_bytes.items() if pid in pids)
        try:
            disk = os.statvfs(self._run_dir)
            self.disk_free_bytes = disk.f_bavail * disk.f_frsize
            rundir.write_json(
                self._file,
                {
                    "v": 1,
                    "attempt": self._attempt,
                    "t": self._clock(),
                    "seq": self._count,
                    "boot_id": identity.boot_id(),
                    "supervisor_pid": os.getpid(),
                    "processes": [[p.pid, p.start_ticks] for p in processes[:_MAX_PROCESSES]],
                    "rss_bytes": sum(p.rss_bytes for p in processes),
                    "cpu_s": round(sum(p.cpu_s for p in processes), 2),
                    "gpu_bytes": own_bytes if self._gpu_known else None,
                    "disk_free_bytes": self.disk_free_bytes,
                },
                durable=False,
            )
            self._complained = False
        except OSError as error:
            if not self._complained:  # a full disk: the run itself may go on, so say it once in the log
                self._complained = True
                complain(f"the heartbeat could not be written: {error}")

    def stop_asking(self, wait_s: float = 3.0) -> None:
        """No question to the GPUs after this, and the one that is open is waited for: it is a child of the supervisor,
        and would be taken for something that the worker has left behind."""
        self._gpu_next = float("inf")
        if self._gpu_thread is not None:
            self._gpu_thread.join(wait_s)

    def _ask_gpus(self) -> None:
        if time.monotonic() < self._gpu_next or (self._gpu_thread is not None and self._gpu_thread.is_alive()):
            return
        self._gpu_next = time.monotonic() + GPU_EVERY_BEATS * self._every_s
        self._gpu_thread = threading.Thread(target=self._read_gpus, daemon=True)
        self._gpu_thread.start()

    def _read_gpus(self) -> None:
        report = gpu.report()
        if report["status"] == "none" and self.gpu_report is None:
            self._gpu_next = float("inf")  # a driver does not appear under a running job
            return
        self.gpu_report = report
        found: List[Dict[str, int]] = [p for card in report["gpus"] for p in card["processes"]]
        self._gpu_bytes = {}
        for process in found:
            self._gpu_bytes[process["pid"]] = self._gpu_bytes.get(process["pid"], 0) + (process.get("used_bytes") or 0)
        self._gpu_known = report["status"] == "ok"
