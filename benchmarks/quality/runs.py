"""The runs that the part ``quality`` needs, started as a person starts them: ``eagle3 run``, ``eagle3 fork``, ``eagle3 resume``.

All are judged on the same held-out prompts, which are of a kind that none of the trainings has seen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.core.intervals import Counted
from eagle3.core.records import Result
from eagle3.runner import rundir

TARGET, MACHINE = "smollm2-135m", "cpu"

JUDGED = {
    "data.heldout_kinds": '["chat"]',
    "data.heldout_prompts": "20",
    "evaluate.prompts": "20",
    "evaluate.max_new_tokens": "96",
    "evaluate.concurrency": "8",
    "evaluate.concurrencies": "[]",
    "evaluate.temperatures": "[0]",
}
"""What the runs have in common: 20 of the shipped prompts that are talk, and no talk in the training."""


@dataclass(frozen=True)
class Planned:
    """A run of the benchmark. ``fork_of``: the run whose stages it takes over as far as they fit."""

    run_id: str
    size: str
    changes: Mapping[str, str] = field(default_factory=dict)
    fork_of: str = ""

    def command(self, workspace: Path) -> list[str]:
        """The command line that starts it."""
        sets = [word for name, value in {**({} if self.fork_of else JUDGED), **self.changes}.items()
                for word in ("--set", f"{name}={value}")]  # fmt: skip
        if self.fork_of:
            what = ["fork", self.fork_of, "--id", self.run_id]
        else:
            what = ["run", "--run-id", self.run_id, "--size", self.size, "--target", TARGET, "--machine", MACHINE]
        return [sys.executable, "-m", "eagle3", *what, *sets, "--workspace", str(workspace)]


TRAINED = Planned("trained", "full")
"""240 prompts, answers of at most 128 tokens, 1,300 steps of 256 tokens."""
PILOT = Planned("pilot", "pilot")
"""64 prompts, answers of at most 96 tokens, 200 steps of 256 tokens."""
NOTHING_LEARNT = {"train.max_steps": "1", "train.warmup_steps": "0", "train.learning_rate": "1e-12"}
UNTRAINED = Planned("untrained", "full", NOTHING_LEARNT, fork_of="trained")
"""The draft as a training finds it: one step at a rate that moves nothing. Prompts, answers and states are the trained one's."""

QUICK = {
    "data.train_prompts": "12",
    "data.heldout_prompts": "8",
    "regenerate.max_new_tokens": "32",
    "train.max_steps": "4",
    "train.warmup_steps": "1",
    "evaluate.prompts": "8",
    "evaluate.max_new_tokens": "32",
}
"""To see whether it works."""


@dataclass(frozen=True)
class Judged:
    """A finished run. ``answers``: of each prompt, in the order in which all runs are asked: tokens accepted, and drafts."""

    result: Result
    answers: Sequence[Counted]


def finish(planned: Planned, workspace: Path) -> Judged:
    """Start a run, or let one that stands in the workspace go on, wait for its end, and read its result.

    Raises RuntimeError where it fails, or keeps no counts by answer.
    """
    run_dir = workspace / "runs" / planned.run_id
    if not (run_dir / "result.json").is_file():
        again = [sys.executable, "-m", "eagle3", "resume", planned.run_id, "--workspace", str(workspace)]
        command = again if (run_dir / "attempts").is_dir() else planned.command(workspace)
        if subprocess.run(command, check=False).returncode != 0:
            raise RuntimeError(
                f"The run {planned.run_id} has not finished; see {run_dir}, then measure again with this workspace."
            )
    result = Result.model_validate(rundir.read_object(run_dir / "result.json"))
    return Judged(result, _answers(run_dir, result))


def _answers(run_dir: Path, result: Result) -> list[Counted]:
    each = rundir.read_object(run_dir / "evaluate" / "served.json").get("each") or {}
    rows: list[dict[str, Any]] = each.get("draft", {}).get(str(result.served.get("concurrency")), [])
    if not rows or any("drafts" not in row for row in rows):
        raise RuntimeError(
            f"{run_dir} keeps no counts by answer: an older version evaluated it, or a vLLM that does not tell them. "
            "Measure in another workspace, with the vLLM of requirements/."
        )
    return [(sum(row["accepted_per_pos"]), row["drafts"]) for row in rows]
