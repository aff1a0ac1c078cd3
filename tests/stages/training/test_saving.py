"""When a training is saved, what is told of it, and which checkpoint is kept for being the best."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.core.spec import Train
from eagle3.journal import Journal
from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.training.group import Group
from eagle3.training.heldout import Heldout
from eagle3.training.saving import Saver


class Training:
    """What a saver asks of a trainer, with one weight."""

    steps_done = 0

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.full((4,), float(self.steps_done))}

    def state(self) -> dict[str, Any]:
        return {"global_step": self.steps_done}


@pytest.fixture
def saver(tmp_path: Path) -> Callable[..., Saver]:
    def make(clock: Callable[[], float] = lambda: 0.0, signature: str = "abc", **settings: Any) -> Saver:
        how = Train(**{"keep_last": 2, "checkpoint_every_steps": 100, **settings})
        return Saver(tmp_path / "train", signature, how, Group(), Journal(tmp_path, 1), clock=clock)

    return make


def score(accept_len: float, loss: float = 1.0) -> Heldout:
    return Heldout([accept_len - 1], accept_len, loss, [loss], 100, 10)


def at(step: int) -> Any:
    training = Training()
    training.steps_done = step
    return training


def judged(found: Saver, step: int, scored: Heldout) -> None:
    found.judge(step, scored, lambda: found.save(at(step), {}))


def kept(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "train" / "checkpoints").iterdir()}


def test_a_checkpoint_is_due_by_steps_and_at_the_last_step(saver: Callable[..., Saver]) -> None:
    found = saver(max_steps=250)
    assert [step for step in range(1, 251) if found.due(step)] == [100, 200, 250]


def test_a_checkpoint_is_due_when_the_last_save_is_minutes_ago(saver: Callable[..., Saver]) -> None:
    now = 0.0
    found = saver(lambda: now, checkpoint_every_minutes=2.0)
    now = 119.0
    assert not found.due(7)
    now = 120.0
    assert found.due(8)
    found.save(at(8), {})
    assert not found.due(9)
    now = 240.0
    assert found.due(10)


def test_each_save_is_told_with_its_step_size_and_time(saver: Callable[..., Saver], tmp_path: Path) -> None:
    times = iter([0.0, 10.0, 12.5, 12.5])
    saver(lambda: next(times)).save(at(4), {})
    (row,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    size = sum(file.stat().st_size for file in (tmp_path / "train" / "checkpoints" / "step-4").iterdir())
    assert (row["kind"], row["level"], row["step"], row["bytes"], row["seconds"]) == ("checkpoint-saved", "info", 4, size, 2.5)


def test_a_step_is_saved_once(saver: Callable[..., Saver], tmp_path: Path) -> None:
    found = saver()
    found.save(at(4), {})
    found.save(at(4), {})
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1


def test_the_best_stays_beside_the_last_ones_and_only_the_former_best_goes(saver: Callable[..., Saver], tmp_path: Path) -> None:
    found = saver(keep_best=True)
    (tmp_path / "train" / "checkpoints" / "step-0").mkdir(parents=True)  # somebody else's
    for step, accept_len in ((10, 1.2), (20, 1.5), (30, 1.4), (40, 1.3), (50, 1.1)):
        found.save(at(step), {})
        judged(found, step, score(accept_len))
    assert kept(tmp_path) == {"step-0", "step-20", "step-40", "step-50"}
    assert found.best["step"] == 20 and found.best["accept_len"] == 1.5
    judged(found, 60, score(1.6))
    assert kept(tmp_path) == {"step-0", "step-50", "step-60"}, "the best is saved even where no checkpoint was due"
    best = found.best_checkpoint()
    assert best is not None and best.load(torch.device("cpu"))[0]["w"].tolist() == [60.0] * 4


def test_of_equal_lengths_the_lower_loss_is_better(saver: Callable[..., Saver]) -> None:
    found = saver(keep_best=True)
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5)):
        judged(found, step, score(1.5, loss))
    assert found.best["step"] == 2


def test_a_later_attempt_knows_the_best_and_does_not_take_a_worse_one(saver: Callable[..., Saver], tmp_path: Path) -> None:
    judged(saver(keep_best=True), 10, score(1.5))
    later = saver(keep_best=True)
    for step in (20, 30, 40):
        later.save(at(step), {})
        judged(later, step, score(1.2))
    assert later.best["step"] == 10 and kept(tmp_path) == {"step-10", "step-30", "step-40"}


@pytest.mark.parametrize("lost", ["torn", "of another training"])
def test_a_best_whose_checkpoint_cannot_be_used_is_forgotten(saver: Callable[..., Saver], tmp_path: Path, lost: str) -> None:
    judged(saver(keep_best=True), 10, score(1.5))
    if lost == "torn":
        (tmp_path / "train" / "checkpoints" / "step-10" / "state.pt").write_bytes(b"torn")
    found = saver(keep_best=True, signature="xyz" if lost != "torn" else "abc")
    assert found.best == {}
    judged(found, 20, score(1.1))
    assert found.best["step"] == 20


def test_without_keep_best_nothing_is_written_of_it(saver: Callable[..., Saver], tmp_path: Path) -> None:
    judged(saver(), 10, score(1.5))
    assert not (tmp_path / "train").exists()


@pytest.mark.slow
def test_the_best_checkpoint_can_be_what_is_exported(
    toy_run: Callable[..., StageContext], rows_of: Callable[[StageContext, str], list[dict]]
) -> None:
    # A rate at which it first learns and then forgets.
    how = {"max_steps": 40, "learning_rate": 0.2, "warmup_steps": 30, "validate_every_steps": 5, "vocabulary_size": 64}
    ctx = toy_run(run="best", keep_best=True, export_best=True, **how)
    figures = train.run(ctx)
    val = {row["step"]: row for row in rows_of(ctx, "metrics.jsonl") if row["split"] == "val" and row["step"]}
    best = max(val, key=lambda step: (val[step]["accept_len"], -val[step]["loss"]))
    assert best < 40, "else this says nothing"
    assert figures["exported_step"] == figures["best"]["step"] == best
    assert figures["val"]["accept_len"] == val[best]["accept_len"] > val[40]["accept_len"]
    draft = load_file(ctx.run_dir / "train" / "draft" / "model.safetensors")
    saved = load_file(ctx.run_dir / "train" / "checkpoints" / f"step-{best}" / "weights.safetensors")
    assert all(torch.equal(draft[name], tensor) for name, tensor in saved.items())
    last = train.run(toy_run(run="last", keep_best=True, **how))
    assert (last["exported_step"], last["best"]["step"]) == (40, best)
    assert last["val"]["accept_len"] == val[40]["accept_len"]


def test_what_a_kill_left_of_a_checkpoint_goes_when_the_training_is_taken_up_though_it_saves_no_more(
    tmp_path: Path, saver: Callable[..., Saver]
) -> None:
    left = tmp_path / "train" / "checkpoints" / ".partial-step-4.gone"
    left.mkdir(parents=True)
    (left / "state.pt").write_bytes(b"what is left")
    saver()
    assert not left.exists()
