"""Run directories as a worker would leave them, written straight to disk for the in-process container to read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from eagle3.core import presets
from eagle3.core.spec import STAGES

NOW = 1_764_496_800.0
"""The frozen time of both clocks in tests: 2025-11-30 10:00 UTC."""


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def metric(step: int, split: str = "train", **values: Any) -> dict[str, Any]:
    """A believable row: loss falls from 34, acceptance rises."""
    grown = 1 - math.exp(-step / 60)
    acc = [0.02 + 0.2 * grown, 0.005 + 0.06 * grown, 0.001 + 0.02 * grown]
    row = {
        "v": 1, "attempt": 1, "seq": step + (100_000 if split == "val" else 0), "t": NOW - 300 + step, "stage": "train",
        "split": split, "step": step, "loss": 4.2 + 30 * math.exp(-step / 25), "acc_pos": acc, "accept_len": 1 + sum(acc),
    }  # fmt: skip
    return row | values


def event(kind: str, text: str, level: str = "info", t: float = NOW - 20, **more: Any) -> dict[str, Any]:
    return {"v": 1, "attempt": 1, "t": t, "kind": kind, "level": level, "actor": "worker", "text": text, **more}


def write_run(root: Path, run_id: str, state: str = "running", *, steps: int = 62, **summary: Any) -> Path:
    """A run in ``state``; ``summary`` overrides what the runner would derive."""
    run = root / run_id
    run.mkdir(parents=True)
    (run / "spec.toml").write_text(presets.resolve("pilot", "smollm2-135m", "cpu").to_toml())
    done = {"prepare": 2.1, "regenerate": 81.4, "extract": 44.0, "vocabulary": 3.2}
    if state == "finished":
        done |= {"train": 227.0, "evaluate": 96.0, "export": 1.2}
    progress = {
        "v": 1, "attempt": 1, "stage": STAGES[min(len(done), 6)], "done": steps, "total": 180, "unit": "steps",
        "rate": 0.8, "eta_s": (180 - steps) / 0.8, "t": NOW - 1, "quiet_until": None, "reason": "",
    }  # fmt: skip
    (run / "progress.json").write_text(json.dumps(progress))
    lines(run / "metrics.jsonl", [metric(step) for step in range(1, steps + 1)])
    lines(run / "metrics.jsonl", [metric(step, "val") for step in range(0, steps + 1, 60)])
    lines(run / "events.jsonl", [event("stage", f"{name} done", t=NOW - 100 + n) for n, name in enumerate(done)])
    log = run / "attempts" / "1" / "run.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"10:00:{n % 60:02d} step {n} loss {34 - n / 3:.2f}\n" for n in range(steps)))
    ended = state not in {"running", "starting", "stalled", "unsupervised"}
    derived = {
        "run_id": run_id, "run_dir": str(run), "state": state, "attempt": 1, "actor": "tests",
        "label": {"size": "pilot", "target": "smollm2-135m", "machine": "cpu"},
        "created_at": NOW - 400, "started_at": NOW - 398, "ended_at": NOW - 10 if ended else None,
        "exit_code": {"finished": 0, "failed": 1, "stopped": 75}.get(state), "progress": progress, "stages": done, "now": NOW,
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(derived | summary))
    if state == "finished":
        (run / "result.json").write_text(json.dumps(result(run_id)))
    return run


def result(run_id: str) -> dict[str, Any]:
    return {
        "v": 1, "run_id": run_id, "state": "finished", "wall_s": 455.0, "stages": {},
        "val": {"acc_pos": [0.21, 0.06, 0.02], "accept_len": 1.29}, "untrained": {"acc_pos": [0.0, 0.0, 0.0]},
        "served": {"accept_len": 1.17, "acc_pos": [0.15, 0.02, 0.0], "drafts": 612, "prompts": 20,
                   "tok_s": 38.2, "tok_s_no_draft": 54.9},
        "lossless": {"identical": 4, "of": 4}, "verdict": "learns",
        "verdict_text": "The draft learned (position-0 acceptance 0.21, untrained 0.00), but is not useful on this machine.",
        "thresholds": {"broken_below": 0.1, "min_drafts": 200},
    }  # fmt: skip
