#!/usr/bin/env python3
"""Stands in for a worker's Python: started as ``-m eagle3 work RUN_DIR``, it leaves what a real worker leaves, quickly.

It runs every stage with a few steps each and finishes; where the file ``hold`` lies in the workspace it stays in training
until TERM arrives (exit 75).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STAGES = ("prepare", "regenerate", "extract", "vocabulary", "train", "evaluate", "export")
run_dir = Path(sys.argv[-1])
hold = run_dir.parent.parent / "hold"
attempt = int(os.environ["EAGLE3_ATTEMPT"])
stop: list = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
seq = 0


def append(name: str, row: dict) -> None:
    data = json.dumps({"v": 1, "attempt": attempt, "t": time.time(), **row}).encode() + b"\n"
    descriptor = os.open(run_dir / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def replace(name: str, value: dict) -> None:
    path = run_dir / name
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def row(step: int, split: str, loss: float) -> None:
    global seq
    seq += 1
    acc = [0.02 * step, 0.005 * step, 0.001 * step]
    values = {"loss": loss, "acc_pos": acc, "accept_len": 1 + sum(acc)}
    append("metrics.jsonl", {"seq": seq, "stage": "train", "split": split, "step": step, **values})


def work() -> None:
    for stage in STAGES:
        if (run_dir / "stages" / f"{stage}.json").exists():
            continue
        steps = 12 if stage == "train" else 2
        began, step = time.time(), 0
        while step < steps or (stage == "train" and hold.exists()):
            step += 1
            if stage == "train":
                row(step, "train", 30.0 / step)
                if step % 4 == 0:
                    row(step, "val", 31.0 / step)
            progress = {"stage": stage, "done": step, "total": max(steps, step), "unit": "steps", "rate": 20.0, "eta_s": 0.1}
            replace(
                "progress.json", {"v": 1, "attempt": attempt, "t": time.time(), "quiet_until": None, "reason": "", **progress}
            )
            print(f"{stage} step {step} [/red] \x1b]0;owned\x07 [bold]", flush=True)
            time.sleep(0.03)
            if stop:
                append("events.jsonl", {"kind": "stopped", "level": "info", "text": "Stopped where everything is on disk."})
                sys.exit(75)
        record = {"v": 1, "stage": stage, "attempt": attempt, "seconds": time.time() - began, "t": time.time()}
        replace(f"stages/{stage}.json", record)
        append("events.jsonl", {"kind": "stage", "level": "info", "text": f"{stage} is done [/]."})
    replace(
        "result.json",
        {
            "v": 1, "run_id": run_dir.name, "state": "finished", "wall_s": 1.0, "val": {"accept_len": 1.29},
            "served": {"accept_len": 1.17, "tok_s": 38.0, "tok_s_no_draft": 55.0}, "lossless": {"identical": 4, "of": 4},
            "verdict": "learns", "verdict_text": "The draft learned, but is not useful on this machine.",
        },
    )  # fmt: skip


work()
