#!/usr/bin/env python3
"""Stands in for a worker_python: started as ``-m eagle3 work RUN_DIR``, it writes rows as a real worker would.

It goes on until ``finish`` appears in the run directory (then exit 0), or TERM arrives (exit 75). A resumed attempt
repeats the last steps of the one before, as training does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

run_dir = Path(sys.argv[-1])
attempt = int(os.environ["EAGLE3_ATTEMPT"])
stop: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))


def append(name: str, row: dict[str, Any]) -> None:
    data = json.dumps({"v": 1, "attempt": attempt, "t": time.time(), **row}).encode() + b"\n"
    descriptor = os.open(run_dir / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def replace(name: str, value: dict[str, Any]) -> None:
    temporary = run_dir / f".{name}.tmp"
    temporary.write_text(json.dumps(value))
    temporary.rename(run_dir / name)


lines = (run_dir / "metrics.jsonl").read_text().splitlines() if (run_dir / "metrics.jsonl").exists() else []
step = max(0, len(lines) - 3)
append("events.jsonl", {"kind": "start", "level": "info", "text": f"attempt {attempt} \x1b[31mstarted\x1b[0m"})
while not stop and not (run_dir / "finish").exists():
    step += 1
    append("metrics.jsonl", {"seq": step, "stage": "train", "step": step, "loss": 1.0 / step, "acc_pos": [0.3, 0.1]})
    replace("progress.json", {"v": 1, "attempt": attempt, "stage": "train", "done": step, "unit": "steps", "t": time.time()})
    print(f"step {step}", flush=True)
    time.sleep(0.02)
if stop:
    sys.exit(75)
replace("result.json", {"v": 1, "run_id": run_dir.name, "state": "finished", "verdict": "useful", "wall_s": 1.0})
