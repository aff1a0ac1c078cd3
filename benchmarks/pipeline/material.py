"""Our own run: the pilot as ``eagle3 run`` makes it, timed. What it leaves is what the other parts are measured on."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.options import Options
from eagle3.core.spec import RunSpec

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """A finished run of ours. ``wall_s``: from the command's start to its end; for a run that was there already, what its own
    result says, from its launch to its verdict."""

    run_dir: Path
    spec: RunSpec
    wall_s: float
    stages: dict[str, float]
    """Seconds by stage."""


@functools.cache
def ours(options: Options) -> Run:
    """The pilot (with ``quick`` the smoke size), run once in a process; or the finished one that the options name."""
    if options.run_dir is not None:
        return _read(options.run_dir)
    folder = Path(tempfile.mkdtemp(prefix="eagle3-pipeline-"))
    size = "smoke" if options.quick else "pilot"
    command = ["-m", "eagle3", "run", "--size", size, "--workspace", str(folder), "--run-id", "ours"]
    began = time.monotonic()
    call([sys.executable, *command], folder / "ours.log")
    return _read(folder / "runs" / "ours", time.monotonic() - began)


def _read(run_dir: Path, wall_s: float | None = None) -> Run:
    if not (run_dir / "result.json").is_file():
        raise typer.BadParameter(f"{run_dir} is no finished run: it has no result.json.")
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    spec = RunSpec.from_toml((run_dir / "spec.toml").read_text())
    return Run(run_dir, spec, result["wall_s"] if wall_s is None else wall_s, result["stages"])


def samples(run: Run) -> list[dict[str, Any]]:
    """The run's samples, those to train on first."""
    rows = [json.loads(line) for line in (run.run_dir / "data" / "samples.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: (row["split"] != "train", row["index"]))


def call(command: Sequence[str], log: Path, **env: str) -> float:
    """Run a command to its end; its seconds. Raises RuntimeError with the end of its output where it fails."""
    began = time.monotonic()
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(command)}\n".encode())
        output.flush()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **offline(), **env},
            cwd=ROOT, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{command[:4]} ended with {done.returncode}; {log} ends:\n{log.read_text()[-2000:]}")
    return time.monotonic() - began


def offline() -> dict[str, str]:
    """Nothing here asks a hub."""
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
