"""A training that was stopped, killed or not finished goes on as if nothing had been, and starts anew where it must."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.journal import Journal
from eagle3.stages import train
from eagle3.stages.context import StageContext, Stopped
from eagle3.training.checkpoint import Checkpoint
from tests.stages.training.left import Rows, checkpoints, losses, weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("steps", [6, 7], ids=["at the end of an epoch", "in the middle of one"])
def test_a_stop_between_steps_saves_and_the_resume_repeats_the_unbroken_run(
    toy_run: Callable[..., StageContext], rows_of: Rows, steps: int
) -> None:
    unbroken = toy_run(run="unbroken")
    train.run(unbroken)

    # An epoch has three steps.
    stopped = toy_run(run="broken", stop_after=steps)
    with pytest.raises(Stopped):
        train.run(stopped)
    assert f"step-{steps}" in checkpoints(stopped)
    assert not (stopped.run_dir / "train" / "draft").exists()

    resumed = toy_run(run="broken")
    figures = train.run(resumed)
    assert figures["resumed_from"] == steps
    assert losses(rows_of(resumed, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    for name, tensor in weights(unbroken).items():
        assert torch.equal(weights(resumed)[name], tensor), name


def test_a_kill_costs_the_steps_since_the_last_whole_checkpoint_and_nothing_else(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    ctx = toy_run()
    figures = train.run(ctx)
    assert checkpoints(ctx) == {"step-8", "step-12"}
    before = losses(rows_of(ctx, "metrics.jsonl"))
    kept = weights(ctx)
    # A kill while the last checkpoint was written.
    newest = ctx.run_dir / "train" / "checkpoints" / "step-12" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    again = train.run(toy_run())
    assert again["resumed_from"] == 8
    assert losses(rows_of(ctx, "metrics.jsonl")) == before
    assert again["val"] == figures["val"]
    assert all(torch.equal(weights(ctx)[name], tensor) for name, tensor in kept.items())


def kill_at_rename_of_step_8(ctx: StageContext) -> None:
    """Train, and die as by kill -9 when the checkpoint of step 8 is written and not yet named."""
    rename = Path.rename

    def die_instead(self: Path, target: Path) -> Path:
        if self.name == ".partial-step-8":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)

    Path.rename = die_instead  # type: ignore[method-assign]
    train.run(ctx)


def test_a_kill_between_the_writing_and_the_naming_of_a_checkpoint_costs_no_more_than_its_steps(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    unbroken = toy_run(run="unbroken")
    train.run(unbroken)
    killed = toy_run(run="killed")
    process = multiprocessing.get_context("fork").Process(target=kill_at_rename_of_step_8, args=(killed,))
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    assert checkpoints(killed) == {"step-4", ".partial-step-8"}
    resumed = toy_run(run="killed")
    assert train.run(resumed)["resumed_from"] == 4
    assert losses(rows_of(resumed, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    assert all(torch.equal(weights(resumed)[name], tensor) for name, tensor in weights(unbroken).items())
    assert checkpoints(resumed) == {"step-8", "step-12"}


def test_a_training_that_was_only_not_finished_is_not_repeated(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    first = train.run(toy_run(max_steps=4))
    ctx = toy_run(max_steps=4)
    count = len(rows_of(ctx, "metrics.jsonl"))
    again = train.run(ctx)
    assert again["resumed_from"] == 4 and again["val"] == first["val"] and again["loss"] == first["loss"]
    assert [row["split"] for row in rows_of(ctx, "metrics.jsonl")[count:]] == ["val"]


def test_a_resume_reads_its_checkpoint_once(toy_run: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch) -> None:
    train.run(toy_run(max_steps=2))
    load, read = Checkpoint.load, []

    def count(checkpoint: Checkpoint, device: torch.device) -> Any:
        read.append(checkpoint.step)
        return load(checkpoint, device)

    monkeypatch.setattr(Checkpoint, "load", count)
    assert train.run(toy_run(max_steps=2))["resumed_from"] == 2
    assert read == [2]


def test_other_settings_start_anew(toy_run: Callable[..., StageContext]) -> None:
    train.run(toy_run(max_steps=4))
    assert train.run(toy_run(max_steps=4, learning_rate=2e-3))["resumed_from"] is None


def test_states_that_were_made_again_start_anew_say_so_and_keep_the_checkpoint(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    ctx = toy_run(max_steps=4)
    manifest = ctx.run_dir / "states" / "manifest.jsonl"
    manifest.write_text('{"index": 0, "sha256": "a"}\n')
    train.run(ctx)
    assert train.run(toy_run(max_steps=4))["resumed_from"] == 4
    manifest.write_text('{"index": 0, "sha256": "b"}\n')
    assert train.run(toy_run(max_steps=4))["resumed_from"] is None
    told = [row for row in rows_of(ctx, "events.jsonl") if row["kind"] == "checkpoint-passed-over"]
    assert [row["step"] for row in told] == [4]
    assert "starts from step 0: the checkpoint of step 4 was trained on other states" in told[0]["text"]
    assert "--from-checkpoint 4" in told[0]["text"]
    assert (ctx.run_dir / "train" / "passed-over-step-4" / "complete.json").exists()


def test_each_pack_of_a_validation_is_a_sign_of_life_and_a_stop_in_it_saves_the_step_before_it_ends(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3.training import heldout

    ctx = toy_run(checkpoint_every_steps=100)
    seconds = itertools.count(1000.0)
    ctx.journal = Journal(ctx.run_dir, 1, clock=lambda: float(next(seconds)))
    asked = False
    ctx.stop_requested = lambda: asked
    evaluate = heldout.evaluate

    def stop_in_the_middle(*args: Any, **how: Any) -> Any:
        nonlocal asked
        asked = bool(losses(rows_of(ctx, "metrics.jsonl"))) if (ctx.run_dir / "metrics.jsonl").exists() else False
        return evaluate(*args, **how)

    monkeypatch.setattr(heldout, "evaluate", stop_in_the_middle)
    with pytest.raises(Stopped):
        train.run(ctx)
    assert checkpoints(ctx) == {"step-6"}
    assert "Training stopped after step 6 of 12; it is saved." in (ctx.run_dir / "events.jsonl").read_text()
    progress = json.loads((ctx.run_dir / "progress.json").read_text())
    assert (progress["done"], progress["total"], progress["reason"]) == (6, 12, "scoring the held-out samples")


def test_a_stop_while_the_packages_load_ends_before_anything_is_built(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(stop_after=0)
    with pytest.raises(Stopped):
        train.run(ctx)
    assert not (ctx.run_dir / "train").exists()


@pytest.mark.parametrize("name", ["untrained/model.safetensors", "untrained/config.json", "floor.json"])
def test_an_untrained_draft_that_is_cut_short_is_made_again_as_it_was(toy_run: Callable[..., StageContext], name: str) -> None:
    ctx = toy_run(max_steps=4)
    figures = train.run(ctx)
    left = {path: path.read_bytes() for path in (ctx.run_dir / "train").glob("untrained/*")}
    path = ctx.run_dir / "train" / name
    path.write_bytes(path.read_bytes()[:-9])
    again = train.run(ctx)
    assert again["resumed_from"] == 4 and again["untrained"] == figures["untrained"]
    assert {path: path.read_bytes() for path in left} == left
