"""Ranks that add up one tensor together: NCCL over GPUs, gloo over processor cores.

``{"ranks","backend","devices","start_s","limit_s","folder"}`` →
``{"ok","started","joined","reduced","hanging","failed","seconds","error"}``. The ranks meet in a file, so that no port is needed,
and each says how far it came: a hang names the ranks that hang.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List


def main() -> None:
    """Without EAGLE3_RANK: start the ranks, wait for them within the limit, print the answer. With it: be one of them."""
    sys.path.pop(0)
    asked = json.loads(sys.argv[1])
    if "EAGLE3_RANK" in os.environ:
        _rank(asked, int(os.environ["EAGLE3_RANK"]))
        return
    ranks, folder = int(asked["ranks"]), Path(asked["folder"])
    begun = time.monotonic()
    processes: List["subprocess.Popen[bytes]"] = []
    logs: List[BinaryIO] = []
    for rank in range(ranks):
        log = (folder / f"log-{rank}").open("w+b")
        logs.append(log)
        env = dict(os.environ, EAGLE3_RANK=str(rank), OMP_NUM_THREADS="1")
        command = [sys.executable, str(Path(__file__).resolve()), sys.argv[1]]
        processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env))
    deadline, started = begun + float(asked["start_s"]), False
    while time.monotonic() < deadline and any(p.poll() is None for p in processes):
        if not started and len(_marked(folder, "started", ranks)) == ranks:
            started, deadline = True, time.monotonic() + float(asked["limit_s"])  # importing torch is not what is asked about
        if any(p.poll() not in (None, 0) for p in processes):
            deadline = min(deadline, time.monotonic() + 2.0)  # one has died: the others wait for it in vain
        time.sleep(0.05)
    hanging = [rank for rank, process in enumerate(processes) if process.poll() is None]
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the driver's hands
            process.wait(5.0)
    reduced = _marked(folder, "reduced", ranks)
    failed = [rank for rank, process in enumerate(processes) if process.returncode and rank not in hanging]
    answer = {
        "ok": len(reduced) == ranks and not failed and not hanging,
        "started": _marked(folder, "started", ranks),
        "joined": _marked(folder, "joined", ranks),
        "reduced": reduced,
        "hanging": hanging,
        "failed": failed,
        "seconds": time.monotonic() - begun,
        "error": _last_line(logs[failed[0]]) if failed else "",
    }
    sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")


def _marked(folder: Path, what: str, ranks: int) -> List[int]:
    """The ranks that have come so far."""
    return [rank for rank in range(ranks) if (folder / f"{what}-{rank}").exists()]


def _rank(asked: Dict[str, Any], rank: int) -> None:
    import torch
    import torch.distributed as dist

    ranks, folder = int(asked["ranks"]), Path(asked["folder"])
    (folder / f"started-{rank}").touch()
    device = asked["devices"][rank] if asked["devices"] else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "store"), ranks)
    # Longer than whoever started the ranks waits: a rank that gave up by itself, having come earlier than the others, would
    # be named as the one that failed in place of the one that never came.
    limit = datetime.timedelta(seconds=float(asked["start_s"]) + float(asked["limit_s"]))
    dist.init_process_group(asked["backend"], store=store, rank=rank, world_size=ranks, timeout=limit)
    (folder / f"joined-{rank}").touch()
    value = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(value)
    expected = ranks * (ranks + 1) / 2
    if not bool((value == expected).all()):
        raise SystemExit(f"rank {rank}: the sum is {float(value[0])}, not {expected}")
    (folder / f"reduced-{rank}").touch()
    dist.barrier()
    dist.destroy_process_group()


def _last_line(log: BinaryIO) -> str:
    log.seek(0, 2)
    log.seek(max(0, log.tell() - 4096))
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


if __name__ == "__main__":
    main()
