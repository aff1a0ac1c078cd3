"""A whole run of a tiny random target, without a vLLM, in which a chosen process is killed at a chosen moment of each stage.

transformers answers and gives the states; the draft is measured on a fake of vLLM, since nothing else here speculates. All
else is real: the launch, the supervisor, the worker, its servers, the training, the resume.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from eagle3.core.launching import launch_request
from eagle3.core.presets import resolve
from eagle3.core.spec import STAGES
from eagle3.rows import read_rows_past_torn
from eagle3.runner import proctable, rundir, state
from tests.runner.support import RUNNER, Channel, end_everything, old_python, summary, wait_for
from tests.stages.fake_vllm import as_interpreter
from tests.stages.tiny_models import spec_of

ROOT = Path(__file__).parents[2]
LIMIT_S = 400.0
"""Many processes that load torch, perhaps beside other tests: a minute where nothing else runs."""
TRAIN, HELDOUT = 10, 4

Plan = dict[str, tuple[str, int | str]]
"""See ``dying_worker``."""


def prompts_file(folder: Path) -> Path:
    """Short prompts: the tokenizer of the tiny target takes each byte for a token."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Name {n} kinds of {n % 7} things."}) + "\n" for n in range(TRAIN + HELDOUT)))
    return path


class MortalRun:
    """A run in a workspace of its own. ``attempts``: how many there were."""

    def __init__(self, folder: Path, target: Path, *, max_steps: int = 12, **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.workspace = folder / "workspace"
        self.run_dir = self.workspace / "runs" / "r"
        self.attempts = 0
        self._plan = folder / "plan.json"
        self._plan.write_text("{}")
        overrides = spec_of(
            target, engine="transformers", disk_floor_bytes=0, worker_python=str(self._interpreter(folder)),
            server_python=as_interpreter(folder), data__prompts=str(prompts_file(folder)), data__train_prompts=TRAIN,
            data__heldout_prompts=HELDOUT, regenerate__max_new_tokens=16, regenerate__temperature=0.0, regenerate__concurrency=2,
            extract__concurrency=2, guards__repeated="off", guards__repeated_share=1.0, vocabulary__size=64,
            train__max_steps=max_steps, train__ttt_steps=2, train__pack_tokens=128, train__checkpoint_every_steps=4,
            train__validate_every_steps=6, evaluate__prompts=4, evaluate__lossless_prompts=1, evaluate__concurrency=2,
            evaluate__max_new_tokens=8, server__env={}, server__backoff_s=0.1, **more,
        )  # fmt: skip
        self.spec = resolve("smoke", "smollm2-135m", "cpu", {name.replace("__", "."): value for name, value in overrides.items()})
        # One thread: exact, and far quicker for so little work where other tests run beside.
        self._channel = Channel(old_python(), "-I", "-S", str(RUNNER), env={"OMP_NUM_THREADS": "1"})
        self._channel.result("hello", actor="test", workspace=str(self.workspace))

    def close(self) -> None:
        self._channel.close()
        end_everything(self.workspace)

    def attempt(self, plan: Plan | None = None) -> None:
        """Launch the run, or resume it, by the real verb. ``plan``: what becomes of this attempt."""
        self._plan.write_text(json.dumps(plan or {}))
        about: dict[str, Any] = {"workspace": str(self.workspace), "run_id": "r", "actor": "test"}
        if self.attempts:
            about["resume"] = True
        else:
            about["spec_toml"] = self.spec.to_toml()
            about["launch"] = launch_request(self.spec, default_python=sys.executable, pythonpath=str(ROOT))
        answer = self._channel.result("launch", **about)
        self.attempts += 1
        assert answer["attempt"] == self.attempts, answer

    def left_of(self, plan: Plan) -> Plan:
        """What of a plan has not come to pass."""
        left = json.loads(self._plan.read_text())
        return {stage: entry for stage, entry in plan.items() if stage in left}

    def state_of(self) -> str:
        return str(summary(self.run_dir)["state"])

    def wait_until(self, *words: str) -> str:
        wait_for(lambda: self.state_of() in words, deadline_s=LIMIT_S)
        return self.state_of()

    def stop(self) -> None:
        self._channel.result("stop", workspace=str(self.workspace), run_id="r", actor="test", grace_s=20)

    def processes(self) -> list[str]:
        """Everything alive that bears the marker of an attempt of this run."""
        found = [p for n in state.attempts(self.run_dir) for p in proctable.marked(str(self.run_dir), n)]
        return [f"{p.pid} {' '.join(proctable.command_line(p.pid))}" for p in found]

    def exit(self) -> dict[str, Any]:
        """The ``exit.json`` of the last attempt."""
        return rundir.read_object(self.run_dir / "attempts" / str(self.attempts) / "exit.json")

    def errors(self) -> list[str]:
        """Why attempts failed, as their workers have told it."""
        return [row["text"] for row in rows(self.run_dir / "events.jsonl") if row.get("kind") == "failed"]

    def records(self) -> dict[str, bytes]:
        """The records of the stages that are finished, byte for byte, each held against the files that it vouches for."""
        found = {name: (self.run_dir / "stages" / f"{name}.json") for name in STAGES}
        told = {name: path.read_bytes() for name, path in found.items() if path.exists()}
        for name, content in told.items():
            for path, entry in json.loads(content)["outputs"].items():
                assert sha256(self.run_dir / path) == entry["sha256"], (name, path)
        return told

    def made(self) -> dict[str, Any]:
        """What the same spec must give, however often it was interrupted."""
        run_dir = self.run_dir
        states = {row["index"]: (row["id"], row["sha256"]) for row in rows(run_dir / "states/manifest.jsonl")}
        assert {index: sha256(run_dir / f"states/hs_{index}.safetensors") for index in states} == {
            index: digest for index, (_, digest) in states.items()
        }
        whole = ("data/prompts.jsonl", "data/samples.jsonl", "vocabulary/d2t.npy", "vocabulary/t2d.npy")
        drafts = ("train/draft/model.safetensors", "train/untrained/model.safetensors", "export/model.safetensors")
        evaluated = json.loads((run_dir / "evaluate/served.json").read_text())["figures"]["served"]
        return {
            "samples": [(row["id"], row["split"], row["input_ids"]) for row in rows(run_dir / "data/samples.jsonl")],
            "states": states,
            **{path: sha256(run_dir / path) for path in (*whole, *drafts)},
            "losses": self.losses(),
            "served": (evaluated["accept_len"], evaluated["acc_pos"]),
        }

    def losses(self) -> dict[int, float]:
        """Loss by step. A step that was done again has the loss that it had."""
        found: dict[int, float] = {}
        for row in rows(self.run_dir / "metrics.jsonl"):
            if (row["stage"], row["split"]) == ("train", "train"):
                assert found.setdefault(row["step"], row["loss"]) == row["loss"], (row["step"], row["attempt"])
        return found

    def _interpreter(self, folder: Path) -> Path:
        """Runs the worker as ``dying_worker`` and everything else, such as its servers, as it is."""
        script = folder / "python-of-the-worker"
        worker = ROOT / "tests" / "e2e" / "dying_worker.py"
        script.write_text(
            f'#!/bin/sh\nif [ "$2" = eagle3 ]; then exec "{sys.executable}" "{worker}" "{self._plan}" "$@"; fi\n'
            f'exec "{sys.executable}" "$@"\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return script


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, without those that were cut short."""
    return read_rows_past_torn(path)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else f"{os.fspath(path)} is gone"
