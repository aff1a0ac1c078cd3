"""Several real processes train one tiny draft through torchrun and gloo: they do what one process does, and end as one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from safetensors.torch import load_file

from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.training import heldout
from eagle3.training.watching import Watch
from tests.stages.training.forked import train_on
from tests.support.guards import the_guard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Rows = Callable[[StageContext, str], list[dict]]


def by_step(rows: list[dict], name: str) -> dict[int, Any]:
    return {row["step"]: row[name] for row in rows if row["split"] == "train"}


def draft_of(ctx: StageContext) -> dict[str, torch.Tensor]:
    return load_file(ctx.run_dir / "train" / "draft" / "model.safetensors")


def assert_same_training(ours: list[dict], theirs: list[dict]) -> None:
    for name in ("loss", "loss_pos", "acc_pos", "grad_norm", "lr"):
        expected = by_step(theirs, name)
        assert by_step(ours, name).keys() == expected.keys()
        for step, value in expected.items():
            assert by_step(ours, name)[step] == pytest.approx(value, rel=1e-4, abs=1e-6), (name, step)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_train_as_one_process_with_the_same_packs(
    toy_run: Callable[..., StageContext], rows_of: Rows, parallel: str
) -> None:
    alone = toy_run(run="alone", packs_per_step=2, max_steps=6)
    train.run(alone)
    two = toy_run(run="two", ranks=2, max_steps=6, parallel=parallel)
    outcome = train_on(two, 2)
    assert outcome["state"] == "finished" and outcome["figures"]["steps"] == 6
    assert_same_training(rows_of(two, "metrics.jsonl"), rows_of(alone, "metrics.jsonl"))
    assert scored(rows_of(two, "metrics.jsonl"))[0] == scored(rows_of(alone, "metrics.jsonl"))[0], "of the untrained draft"
    one, other = draft_of(alone), draft_of(two)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-5)


def scored(rows: list[dict]) -> dict[int, dict[str, Any]]:
    """Held-out figures by step."""
    names = ("acc_pos", "accept_len", "loss", "loss_pos", "tokens", "samples")
    return {row["step"]: {name: row[name] for name in names} for row in rows if row["split"] == "val"}


@pytest.mark.usefixtures("with_tokenizer")
@pytest.mark.parametrize("kind", ["eagle3", pytest.param("dflash", marks=pytest.mark.long)])
def test_two_ranks_score_half_of_the_held_out_packs_each_and_find_the_figures_of_one(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    how = {"kind": kind, "max_steps": 1, "pack_tokens": 32}
    alone, two = toy_run(run="alone", packs_per_step=2, **how), toy_run(run="two", ranks=2, **how)
    train.run(alone)
    score = heldout._score

    def told(model: Any, number: int, *about: Any) -> Any:
        with (two.run_dir / f"scored-{os.environ['RANK']}").open("a") as file:
            file.write(f"{number} ")
        return score(model, number, *about)

    monkeypatch.setattr(heldout, "_score", told)
    train_on(two, 2)
    # Before the first step and at the end.
    assert [(two.run_dir / f"scored-{rank}").read_text() for rank in (0, 1)] == ["0 0 ", "1 1 "]
    assert scored(rows_of(two, "metrics.jsonl"))[0] == scored(rows_of(alone, "metrics.jsonl"))[0]


def test_the_memory_of_a_card_that_another_rank_trains_on_is_watched_too(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iter(range(40, 200, 5))

    # There is no GPU here: the driver's answer is put in its place.
    def memory(watch: Watch) -> tuple[int, int]:
        return (next(used) if os.environ["RANK"] == "1" else 40) << 30, 200 << 30

    monkeypatch.setattr(Watch, "_memory", memory)
    ctx = toy_run(ranks=2, max_steps=8, pack_tokens=32, guards={"memory_after_steps": 2})
    train_on(ctx, 2)
    assert "grew by 12% of the card since step 2" in the_guard(rows_of(ctx, "events.jsonl"), "memory")["text"]


# Three steps in each epoch of these, and two packs of each step for each rank.
SHORT = {"ranks": 2, "packs_per_step": 4, "max_steps": 8, "pack_tokens": 16, "checkpoint_every_steps": 100}
HOLD_AT_4 = {"flat_loss": "pause", "flat_loss_steps": 4, "flat_loss_share": 1.0}


def stopped_at_4(toy_run: Callable[..., StageContext], rows_of: Rows, run: str, **how: Any) -> StageContext:
    """A training of two ranks that a guard has paused after step 4 and that was then stopped."""
    ctx = toy_run(run=run, guards=HOLD_AT_4, **SHORT | how)
    assert train_on(ctx, 2, stop_when_held=True) == {"v": 1, "seq": ANY, "paused_s": ANY, "state": "stopped"}
    assert max(by_step(rows_of(ctx, "metrics.jsonl"), "loss")) == 4
    assert [path.name for path in (ctx.run_dir / "train" / "checkpoints").iterdir()] == ["step-4"]
    (ctx.run_dir / "control.json").unlink()
    return ctx


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_two_ranks_hold_and_stop_as_one_and_their_resume_repeats_the_unbroken_training(
    toy_run: Callable[..., StageContext], rows_of: Rows, parallel: str
) -> None:
    unbroken = toy_run(run="unbroken", parallel=parallel, **SHORT)
    train_on(unbroken, 2)
    stopped_at_4(toy_run, rows_of, "broken", parallel=parallel)
    broken = toy_run(run="broken", parallel=parallel, **SHORT)
    assert train_on(broken, 2)["figures"]["resumed_from"] == 4
    assert by_step(rows_of(broken, "metrics.jsonl"), "loss") == by_step(rows_of(unbroken, "metrics.jsonl"), "loss")
    for name, tensor in draft_of(unbroken).items():
        assert torch.equal(draft_of(broken)[name], tensor), name


def test_what_two_ranks_began_one_process_ends_with_the_same_packs(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    how = SHORT | {"ranks": 1}
    alone = toy_run(run="alone", **how)
    train.run(alone)
    stopped_at_4(toy_run, rows_of, "shared")
    goes_on = toy_run(run="shared", **how)
    assert train.run(goes_on)["resumed_from"] == 4
    assert_same_training(rows_of(goes_on, "metrics.jsonl"), rows_of(alone, "metrics.jsonl"))
