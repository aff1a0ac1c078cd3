"""A training that a person or a guard holds or stops is saved first."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError
from tests.stages.training.left import Rows, checkpoints, losses
from tests.support.guards import the_guard

pytestmark = pytest.mark.slow


def test_a_paused_training_is_saved_first_holds_and_then_learns_as_if_nothing_had_been(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    unbroken = toy_run(run="unbroken", max_steps=4)
    train.run(unbroken)
    ctx = toy_run(run="paused", max_steps=4)
    control = ctx.run_dir / "control.json"
    orders = {"v": 1, "attempt": 1, "pause": {"by": "ann", "t": 1.0}, "checkpoint": {"by": "bob", "t": 2.0}}
    control.write_text(json.dumps(orders))
    seen: list[set[str]] = []

    def let_it_go_on() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = (ctx.run_dir / "events.jsonl").exists() and rows_of(ctx, "events.jsonl")
            if told and any(row["kind"] == "paused" for row in told):
                seen.append(checkpoints(ctx))
                break
            time.sleep(0.02)
        control.write_text(json.dumps(orders | {"pause": None}))

    helper = threading.Thread(target=let_it_go_on)
    helper.start()
    figures = train.run(ctx)
    helper.join()
    assert seen == [{"step-1"}]
    assert figures["steps"] == 4
    assert losses(rows_of(ctx, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    told = [row["text"] for row in rows_of(ctx, "events.jsonl") if row["kind"] in ("checkpoint", "resumed")]
    assert told[0] == "Step 1 is saved, as bob asked."
    assert len(told) == 2, "an order is obeyed once"


def test_a_guard_that_asks_for_a_stop_ends_the_training_with_everything_saved(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    flat = {"flat_loss": "stop", "flat_loss_steps": 6, "flat_loss_share": 1.0}
    ctx = toy_run(max_steps=12, checkpoint_every_steps=100, guards=flat)
    with pytest.raises(StageError, match="The loss fell by"):
        train.run(ctx)
    event = the_guard(rows_of(ctx, "events.jsonl"), "flat-loss")
    assert event["level"] == "error" and event["guard"]["threshold"] == 1.0 and event["guard"]["counts"] == {"steps": 6.0}
    assert checkpoints(ctx) == {"step-6"}


def test_a_guard_that_asks_for_a_pause_holds_the_run_until_somebody_lets_it_go_on(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    flat = {"flat_loss": "pause", "flat_loss_steps": 4, "flat_loss_share": 1.0}
    ctx = toy_run(max_steps=6, guards=flat)
    let_go = threading.Thread(target=_let_go_when_paused, args=(ctx,))
    let_go.start()
    train.run(ctx)
    let_go.join(60)
    kinds = [row["kind"] for row in rows_of(ctx, "events.jsonl")]
    assert kinds.index("guard-flat-loss") < kinds.index("paused") < kinds.index("resumed")
    assert list(losses(rows_of(ctx, "metrics.jsonl"))) == [1, 2, 3, 4, 5, 6]


def _let_go_when_paused(ctx: StageContext) -> None:
    path, deadline = ctx.run_dir / "events.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and "Paused by the guard flat-loss" in path.read_text():
            (ctx.run_dir / "control.json").write_text(json.dumps({"v": 1, "attempt": 1, "pause": None}))
            return
        time.sleep(0.05)
