"""A fork's training goes on from a checkpoint of its parent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError
from tests.stages.training.left import Rows, losses

pytestmark = pytest.mark.slow


def forked(parent: StageContext, child: StageContext, step: int, *changed: str) -> None:
    """Give the run ``child`` the parent's data and its checkpoint, as a fork does."""
    for name in ("data", "states", "vocabulary", f"train/checkpoints/step-{step}", "train/untrained"):
        shutil.rmtree(child.run_dir / name, ignore_errors=True)
        shutil.copytree(parent.run_dir / name, child.run_dir / name)
    lineage = {"v": 1, "run_id": "parent", "checkpoint": step, "changed": list(changed)}
    (child.run_dir / "fork.json").write_text(json.dumps(lineage))


def test_a_fork_goes_on_from_a_checkpoint_with_its_own_learning_rate(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    parent = toy_run(run="parent", max_steps=8, checkpoint_every_steps=4)
    train.run(parent)
    child = toy_run(run="child", max_steps=8, checkpoint_every_steps=4, learning_rate=1e-5)
    forked(parent, child, 4, "train.learning_rate")
    figures = train.run(child)
    theirs, ours = rows_of(parent, "metrics.jsonl"), rows_of(child, "metrics.jsonl")
    assert figures["resumed_from"] == 4
    assert list(losses(ours)) == [5, 6, 7, 8]
    assert losses(ours)[5] == losses(theirs)[5], "the weights and the order of the samples are the checkpoint's"
    rates = {row["step"]: row["lr"] for row in ours if row["split"] == "train"}
    before = {row["step"]: row["lr"] for row in theirs if row["split"] == "train"}
    for step in rates:
        assert rates[step] / 1e-5 == pytest.approx(before[step] / parent.spec.train.learning_rate)


def test_a_fork_that_changes_nothing_repeats_the_parents_losses_exactly(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    parent = toy_run(run="parent", max_steps=6, checkpoint_every_steps=3)
    train.run(parent)
    child = toy_run(run="child", max_steps=6, checkpoint_every_steps=3)
    forked(parent, child, 3)
    train.run(child)
    theirs = losses(rows_of(parent, "metrics.jsonl"))
    assert losses(rows_of(child, "metrics.jsonl")) == {step: theirs[step] for step in (4, 5, 6)}


def test_a_fork_whose_checkpoint_is_torn_says_so_and_does_not_start_from_nothing(toy_run: Callable[..., StageContext]) -> None:
    parent = toy_run(run="parent", max_steps=4, checkpoint_every_steps=2)
    train.run(parent)
    child = toy_run(run="child", max_steps=4, learning_rate=1e-5)
    forked(parent, child, 2, "train.learning_rate")
    (child.run_dir / "train" / "checkpoints" / "step-2" / "state.pt").write_bytes(b"torn")
    with pytest.raises(StageError, match="The checkpoint of step 2 that this run was forked from is gone or not whole"):
        train.run(child)
