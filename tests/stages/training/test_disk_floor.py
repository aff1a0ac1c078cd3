"""A training whose disk is full when it is to save, on a real small file system: it waits, and what it has learnt is not lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError, Stopped
from tests.stages.training.forked import train_on
from tests.stages.training.full_disk import filled_after, keep, on_its_own_disk, when_it_waits
from tests.stages.training.left import Rows, checkpoints, losses
from tests.support.guards import of_guard, the_guard

pytestmark = pytest.mark.slow

FLOOR = 2 << 20
SHORT = {"max_steps": 8, "checkpoint_every_steps": 4, "validate_every_steps": 8}
ROOM_BELOW_THE_FLOOR = FLOOR
"""Free, once somebody else has taken the rest: a checkpoint (under half of it) would take the disk below its floor."""


@pytest.fixture
def unbroken(toy_run: Callable[..., StageContext], rows_of: Rows) -> Callable[..., dict[int, float]]:
    """Losses by step of a training that has all the room it wants."""

    def make(**how: Any) -> dict[int, float]:
        ctx = toy_run(run="unbroken", **SHORT | how)
        train.run(ctx)
        return losses(rows_of(ctx, "metrics.jsonl"))

    return make


@pytest.fixture
def on_a_small_disk(tmp_path: Path, toy_run: Callable[..., StageContext]) -> Callable[..., StageContext]:
    """A run after ``do`` was done to it on a disk of 24 MiB; its folder is where no such disk is seen any more."""
    place = tmp_path / "disk"

    def make(do: Callable[[StageContext, Path], None], **how: Any) -> StageContext:
        def there() -> None:
            ctx = toy_run(run="disk/run", disk_floor_bytes=FLOOR, **SHORT | how)
            do(ctx, place / "other")
            keep(ctx.run_dir, tmp_path / "left")

        on_its_own_disk(place, "24M", there)
        return toy_run(run="left", **SHORT | how)

    return make


@pytest.mark.parametrize("ranks", [1, 2])
def test_at_the_floor_it_waits_says_so_once_and_goes_on_by_itself_with_the_same_losses(
    on_a_small_disk: Callable[..., StageContext], unbroken: Callable[..., dict[int, float]], rows_of: Rows, ranks: int
) -> None:
    def wait_for_room(ctx: StageContext, other: Path) -> None:
        with filled_after(4, other, ROOM_BELOW_THE_FLOOR), when_it_waits(ctx.run_dir, other.unlink):
            if ranks == 1:
                train.run(ctx)
            else:
                train_on(ctx, ranks)

    ctx = on_a_small_disk(wait_for_room, ranks=ranks, packs_per_step=2)
    guard = the_guard(rows_of(ctx, "events.jsonl"), "disk")
    assert guard["guard"]["response"] == "pause" and "the next checkpoint needs" in guard["text"]
    (resumed,) = (row for row in rows_of(ctx, "events.jsonl") if row["kind"] == "resumed")
    assert resumed["text"].startswith("There is space again") and "The training goes on after" in resumed["text"]
    assert checkpoints(ctx) == {"step-4", "step-8"}
    assert losses(rows_of(ctx, "metrics.jsonl")) == pytest.approx(unbroken(packs_per_step=2), rel=1e-4)


def test_after_its_time_it_ends_with_every_step_saved_and_the_resume_repeats_the_unbroken_training(
    on_a_small_disk: Callable[..., StageContext], unbroken: Callable[..., dict[int, float]], rows_of: Rows
) -> None:
    def give_up(ctx: StageContext, other: Path) -> None:
        with filled_after(4, other, ROOM_BELOW_THE_FLOOR), pytest.raises(StageError) as caught:
            train.run(ctx)
        assert "There was no space for" in str(caught.value)
        assert str(caught.value).endswith("The training ended after step 4; it is saved, below the disk's floor.")

    ctx = on_a_small_disk(give_up, guards={"disk_wait_s": 0.5})
    assert [row["guard"]["response"] for row in of_guard(rows_of(ctx, "events.jsonl"), "disk")] == ["pause", "stop"]
    assert checkpoints(ctx) == {"step-4"}
    assert train.run(ctx)["resumed_from"] == 4
    assert losses(rows_of(ctx, "metrics.jsonl")) == unbroken()


def test_where_not_even_one_checkpoint_fits_it_says_what_is_lost(on_a_small_disk: Callable[..., StageContext]) -> None:
    def give_up(ctx: StageContext, other: Path) -> None:
        with filled_after(6, other, 200 << 10), pytest.raises(StageError) as caught:
            train.run(ctx)
        assert str(caught.value).endswith("the 4 steps since step 4 are lost, for no checkpoint fits on the disk.")

    ctx = on_a_small_disk(give_up, guards={"disk_wait_s": 0.0})
    assert checkpoints(ctx) == {"step-4"}


def test_a_stop_is_obeyed_while_it_waits_and_saves(on_a_small_disk: Callable[..., StageContext], rows_of: Rows) -> None:
    def stop(ctx: StageContext, other: Path) -> None:
        asked: list[bool] = []
        ctx.stop_requested = lambda: bool(asked)
        with (
            filled_after(4, other, ROOM_BELOW_THE_FLOOR),
            when_it_waits(ctx.run_dir, lambda: asked.append(True)),
            pytest.raises(Stopped),
        ):
            train.run(ctx)

    ctx = on_a_small_disk(stop)
    told = [row["text"] for row in rows_of(ctx, "events.jsonl") if row["kind"] == "train-stopped"]
    assert told == ["Training stopped after step 4 of 8; it is saved, below the disk's floor."]
    assert checkpoints(ctx) == {"step-4"}
