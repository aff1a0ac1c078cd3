"""Stands in for the worker of a shakedown: it leaves the files that a real one leaves, in its order, and trains forty quick
steps with a checkpoint every ten. Before its second checkpoint it waits for its death: how quick the shakedown is on a busy
machine decides nothing. What goes wrong is chosen by the test."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from eagle3.core.shakedown import prompt_limit
from eagle3.core.spec import STAGES, RunSpec
from eagle3.runner import fork, rundir

STEP_S = 0.05
RATE = {
    "regenerate": {"tok_s": 200.0, "tok_s_no_draft": 90.0, "server_start_s": 12.0, "answer_tokens": 700},
    "extract": {"tok_s": 800.0, "tokens": 900},
}


def as_interpreter(folder: Path, wrong: str = "") -> str:
    """A program to set as ``worker_python``. ``wrong``: "other losses" behind the resume, "own death" before the first
    checkpoint, "short samples", "no end" (it never saves)."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"from tests.shakedown.worker import main; main(sys.argv, {wrong!r})\n"
    )
    program.chmod(0o755)
    return str(program)


def main(argv: list[str], wrong: str) -> None:
    """What the program does when it is started as ``-m eagle3 work RUN_DIR``."""
    if "work" not in argv:  # another command of eagle3, which is the real one
        os.execv(sys.executable, [sys.executable, *argv[1:]])
    run_dir, attempt = Path(argv[-1]), int(os.environ["EAGLE3_ATTEMPT"])

    def finish(stage: str, **figures: Any) -> None:
        record = {"v": 1, "stage": stage, "attempt": attempt, "figures": figures, "seconds": 3.0, "t": time.time()}
        if not (run_dir / "stages" / f"{stage}.json").exists():
            (run_dir / "stages").mkdir(exist_ok=True)
            rundir.write_json(run_dir / "stages" / f"{stage}.json", record)

    with (run_dir / "tokens").open("a") as tokens:  # by their hash, so that no file holds one
        tokens.write(hashlib.sha256(os.environ.get("HF_TOKEN", "").encode()).hexdigest() + "\n")
    (run_dir / "data").mkdir(exist_ok=True)
    spec = RunSpec.from_toml((run_dir / "spec.toml").read_text())
    longest = 9 if wrong == "short samples" else prompt_limit(spec)
    (run_dir / "data" / "samples.jsonl").write_text(json.dumps({"input_ids": [1] * longest}) + "\n")
    for stage in STAGES[:4]:
        finish(stage, **RATE.get(stage, {}))
    if wrong == "own death" and attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    resumed = max(fork.checkpoints(run_dir), default=0) if attempt > 1 else 0
    for step in range(resumed + 1, 41):
        loss = 10.0 / step + (attempt > 1 and wrong == "other losses")
        row = {"v": 1, "attempt": attempt, "t": time.time(), "stage": "train", "split": "train", "step": step, "loss": loss}
        rundir.append_line(run_dir / "metrics.jsonl", row)
        if step % 10 == 0 and wrong != "no end":
            place = run_dir / "train" / "checkpoints" / f"step-{step}"
            place.mkdir(parents=True, exist_ok=True)
            rundir.write_json(place / "complete.json", {"v": 1, "step": step})
        waits = step == 40 if wrong == "no end" else step == 19 and not resumed
        time.sleep(3600.0 if waits else STEP_S)
    finish("train", resumed_from=resumed or None)
    served = {"drafts": 40, "accept_len": 1.02, "tok_s": 60.0, "tokens": 300, "other_cpu": 0.0}
    finish("evaluate", served=served)
    finish("export")
    rundir.write_json(run_dir / "result.json", {"v": 1, "state": "finished", "served": served})
