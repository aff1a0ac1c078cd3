"""Several real ranks that a guard ends, and several that choose the best of their checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.stages.context import StageContext
from eagle3.training.session import Session
from tests.stages.training.forked import ended_on, train_on
from tests.stages.training.left import Rows, checkpoints, weights
from tests.support.guards import the_guard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOW = {"ranks": 2, "pack_tokens": 32, "checkpoint_every_steps": 100}


def test_what_is_no_number_on_one_rank_ends_both_at_that_step_with_the_same_words_and_is_told_once(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_step = Session._on_step

    def spoil_rank_1_behind_step_3(session: Session, row: Any) -> None:
        on_step(session, row)
        if row.step == 3 and session.group.rank == 1:
            with torch.no_grad():
                next(iter(session.trainer.trainable().values())).fill_(float("inf"))

    monkeypatch.setattr(Session, "_on_step", spoil_rank_1_behind_step_3)  # the ranks are forks of this process
    ctx = toy_run(max_steps=6, **HOW)
    codes, said = ended_on(ctx, 2)
    assert codes == [1, 1] and said[0] == said[1]
    assert "not a finite number at step 4" in said[0]
    assert the_guard(rows_of(ctx, "events.jsonl"), "nan")["text"] == said[0]
    assert max(row["step"] for row in rows_of(ctx, "metrics.jsonl") if row["split"] == "train") == 3


def test_a_guard_that_stops_saves_and_ends_both_ranks_and_a_resume_without_it_goes_on(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    stop_at_4 = {"flat_loss": "stop", "flat_loss_steps": 4, "flat_loss_share": 1.0}
    ctx = toy_run(max_steps=6, guards=stop_at_4, **HOW)
    codes, said = ended_on(ctx, 2)
    event = the_guard(rows_of(ctx, "events.jsonl"), "flat-loss")
    assert (codes, said) == ([1, 0], {0: event["text"]}), "one rank says why; the other was told to stop"
    assert checkpoints(ctx) == {"step-4"}
    assert train_on(toy_run(max_steps=6, **HOW), 2)["figures"]["resumed_from"] == 4


def test_two_ranks_keep_the_best_and_give_it_out(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    # A rate at which it first learns and then forgets.
    how = {"max_steps": 40, "learning_rate": 0.2, "warmup_steps": 30, "validate_every_steps": 5, "vocabulary_size": 64}
    ctx = toy_run(keep_best=True, export_best=True, **HOW | how)
    figures = train_on(ctx, 2)["figures"]
    val = {row["step"]: row for row in rows_of(ctx, "metrics.jsonl") if row["split"] == "val" and row["step"]}
    best = max(val, key=lambda step: (val[step]["accept_len"], -val[step]["loss"]))
    assert best < 40, "else this says nothing"
    assert figures["exported_step"] == figures["best"]["step"] == best
    assert figures["val"]["accept_len"] == val[best]["accept_len"] > val[40]["accept_len"]
    saved = load_file(ctx.run_dir / "train" / "checkpoints" / f"step-{best}" / "weights.safetensors")
    assert all(torch.equal(weights(ctx)[name], tensor) for name, tensor in saved.items())
