"""Each guard of a training, tripped by what it is there for, in a real training of a tiny draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.training.session import Session
from eagle3.training.watching import Watch
from tests.support.guards import the_guard

pytestmark = pytest.mark.slow

Rows = Callable[[StageContext, str], list[dict[str, Any]]]


@pytest.fixture
def tripped(rows_of: Rows) -> Callable[[StageContext, str], dict[str, Any]]:
    """The one event of a guard, which must state its numbers and what to do."""

    def find(ctx: StageContext, kind: str) -> dict[str, Any]:
        return dict(the_guard(rows_of(ctx, "events.jsonl"), kind))

    return find


def spoil(ctx: StageContext, change: Callable[[torch.Tensor], torch.Tensor], samples: Iterator[int] | range) -> None:
    """Change the states of some samples."""
    for index in samples:
        file: Path = ctx.run_dir / "states" / f"hs_{index}.safetensors"
        tensors = load_file(file)
        save_file(tensors | {"hidden_states": change(tensors["hidden_states"]).contiguous()}, file)


def test_a_learning_rate_that_ends_in_no_number_ends_the_training_and_is_a_guards_event(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]]
) -> None:
    ctx = toy_run(warmup_steps=0)
    # A spec may not say so; what a rate beyond all bounds does, others do too.
    ctx.spec = ctx.spec.model_copy(update={"train": ctx.spec.train.model_copy(update={"learning_rate": 1e37})})
    with pytest.raises(StageError, match="not a finite number at step"):
        train.run(ctx)
    event = tripped(ctx, "nan")
    assert (event["level"], event["guard"]["response"]) == ("error", "stop") and "Lower train.learning_rate" in event["text"]


def test_a_gradient_that_explodes_is_told_against_the_usual_one(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = toy_run(max_steps=12, guards={"gradient_steps": 5, "gradient_factor": 5.0})
    on_step = Session._on_step

    def wreck_behind_step_8(session: Session, row: Any) -> None:
        on_step(session, row)
        if row.step == 8:  # a weight update gone wrong, as a far too high rate makes it
            with torch.no_grad():
                for parameter in session.trainer.trainable().values():
                    parameter.mul_(50.0)

    monkeypatch.setattr(Session, "_on_step", wreck_behind_step_8)
    train.run(ctx)
    event = tripped(ctx, "gradient")
    assert event["level"] == "warn" and "at step 9" in event["text"] and event["guard"]["value"] > event["guard"]["threshold"]


def test_a_rate_too_small_to_learn_by_leaves_the_loss_flat_and_is_told(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]]
) -> None:
    ctx = toy_run(max_steps=10, learning_rate=1e-9, guards={"flat_loss_steps": 8, "flat_loss_share": 0.1})
    train.run(ctx)
    event = tripped(ctx, "flat-loss")
    assert "over the last 8 steps" in event["text"] and event["guard"]["counts"] == {"steps": 8.0}


def test_a_loss_that_is_flat_over_a_stop_and_a_resume_is_told_too(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]]
) -> None:
    flat = {"max_steps": 10, "learning_rate": 1e-9, "guards": {"flat_loss_steps": 8, "flat_loss_share": 0.1}}
    with pytest.raises(Stopped):
        train.run(toy_run(stop_after=4, **flat))
    ctx = toy_run(**flat)
    assert train.run(ctx)["resumed_from"] == 4
    assert "over the last 8 steps" in tripped(ctx, "flat-loss")["text"]


LEARNS_NOTHING = {"first_position_tokens": 400, "first_position_steps": 10, "first_position_below": 0.2}


def test_wrong_layers_leave_the_first_position_wrong_and_are_told(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]]
) -> None:
    ctx = toy_run(max_steps=20, learning_rate=1e-3, guards=LEARNS_NOTHING)
    noise = torch.Generator().manual_seed(3)
    # States that say nothing of their token, as those of layers that do not exist.
    spoil(ctx, lambda states: torch.randn(states.shape, generator=noise), range(16))
    train.run(ctx)
    event = tripped(ctx, "first-position")
    assert "Check target.auxiliary_layers" in event["text"] and event["guard"]["counts"]["tokens"] >= 400


def test_gpu_memory_that_creeps_up_step_by_step_is_told(
    toy_run: Callable[..., StageContext], tripped: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = toy_run(max_steps=8, guards={"memory_after_steps": 2})
    used = iter(range(40, 100, 5))
    # There is no GPU here: the driver's answer is put in its place.
    monkeypatch.setattr(Watch, "_memory", lambda watch: (next(used) << 30, 100 << 30))
    train.run(ctx)
    event = tripped(ctx, "memory")
    assert "grew by 15% of the card since step 2" in event["text"] and event["guard"]["counts"] == {"step": 5.0}
