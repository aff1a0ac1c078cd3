#!/usr/bin/env python3
"""A worker that leaves what a training leaves, a step a second: a row, progress and a log line; now and then a held-out row
and an event. Started as ``-m eagle3 work RUN_DIR``; ends at TERM."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

run_dir = Path(sys.argv[-1])
attempt = int(os.environ["EAGLE3_ATTEMPT"])
draw = random.Random(1)
stop: list[bool] = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
seq = 0


def append(name: str, row: dict[str, Any]) -> None:
    data = json.dumps({"v": 1, "attempt": attempt, **row}, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(run_dir / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def metrics(step: int, split: str) -> None:
    """As many digits as a real row has: they are what does not compress."""
    global seq
    seq += 1
    acc = [draw.random() * scale for scale in (0.3, 0.1, 0.03)]
    row = {
        "seq": seq, "t": time.time(), "stage": "train", "split": split, "step": step, "loss": 4 + draw.random(),
        "loss_pos": [4 + draw.random() for _ in acc], "acc_pos": acc, "accept_len": 1 + sum(acc), "lr": 1e-3 * draw.random(),
        "grad_norm": draw.random(), "tok_s": 300 + draw.random(),
    }  # fmt: skip
    append("metrics.jsonl", row)


step = 0
while not stop:
    step += 1
    metrics(step, "train")
    if step % 60 == 0:
        metrics(step, "val")
        append("events.jsonl", {"t": time.time(), "kind": "checkpoint", "level": "info", "text": f"Checkpoint at step {step}."})
    progress = {"v": 1, "attempt": attempt, "stage": "train", "done": step, "total": 100_000, "unit": "steps", "t": time.time()}
    progress |= {"rate": 1 + 0.1 * draw.random(), "eta_s": (100_000 - step) * (1 + 0.1 * draw.random()), "reason": ""}
    (run_dir / ".progress.tmp").write_text(json.dumps(progress))
    (run_dir / ".progress.tmp").rename(run_dir / "progress.json")
    print(f"{time.strftime('%H:%M:%S')} step {step} loss {4 + draw.random():.3f} {300 + draw.random():.1f} tokens/s", flush=True)
    time.sleep(max(0.0, 1.0 - time.time() % 1.0))
sys.exit(75)
