"""A paused run holds between two units of work, says so, is not taken for stalled, and its pauses are in no figure."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3 import work
from eagle3.engines.completions import run_bounded
from eagle3.runner import control, holds
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.stages.room import DiskRoom
from tests.stages.runs import context, rows


def order(run_dir: Path, attempt: int = 1, **asked: Any) -> None:
    (run_dir / "control.json").write_text(json.dumps({"v": 1, "attempt": attempt, **asked}))


def paused(ctx: StageContext, by: str = "ann") -> None:
    order(ctx.run_dir, pause={"by": by, "t": time.time()})


def go_on(ctx: StageContext) -> None:
    order(ctx.run_dir, pause=None)


def progress(ctx: StageContext) -> dict[str, Any]:
    return dict(json.loads((ctx.run_dir / "progress.json").read_text()))


def kinds(ctx: StageContext) -> list[str]:
    return [row["kind"] for row in rows(ctx.run_dir, "events.jsonl")]


def test_a_run_that_nobody_has_paused_is_not_held(tmp_path: Path) -> None:
    assert Hold(context(tmp_path), "train")() is False


def test_while_it_holds_progress_says_by_whom_and_that_silence_is_meant(tmp_path: Path) -> None:
    ctx, now = context(tmp_path), [100.0]
    hold = Hold(ctx, "train", "steps", clock=lambda: now[0])
    hold.done, hold.total = 7, 20
    paused(ctx)
    assert hold() is True
    told = progress(ctx)
    assert told["reason"].startswith("Paused by ann since ") and "keeps its memory" in told["reason"]
    assert (told["done"], told["total"]) == (7, 20)
    assert told["quiet_until"] > told["t"]
    (tmp_path / "progress.json").unlink()
    now[0] += 11
    assert hold() is True
    assert progress(ctx)["reason"].startswith("Paused"), "said again, so that the run is never silent for long"
    go_on(ctx)
    now[0] += 20
    assert hold() is False
    assert (hold.seconds, ctx.paused_s) == (31.0, 31.0)
    assert progress(ctx)["reason"] == ""
    assert kinds(ctx) == ["paused", "resumed"]


def test_whoever_holds_a_stage_keeps_how_far_it_is(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ctx.journal.progress("regenerate", 5, 9, "answers")
    hold = Hold(ctx, "regenerate")  # as a guard's, that knows no more than the stage
    paused(ctx)
    assert hold() is True
    told = progress(ctx)
    assert (told["done"], told["total"], told["unit"]) == (5, 9, "answers") and told["reason"].startswith("Paused by ann")
    assert told["rate"] is None and told["eta_s"] is None, "while nothing moves there is no rate"
    go_on(ctx)
    assert hold() is False
    told = progress(ctx)
    assert (told["done"], told["total"], told["unit"], told["reason"]) == (5, 9, "answers", "")


def test_how_far_another_stage_was_says_nothing_of_this_one(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ctx.journal.progress("regenerate", 5, 9, "answers")
    paused(ctx)
    assert Hold(ctx, "extract")() is True
    assert (progress(ctx)["stage"], progress(ctx)["done"], progress(ctx)["total"]) == ("extract", 0, None)


def test_a_guard_that_trips_in_a_pause_is_told_beside_the_person_and_outlasts_the_persons_pause(tmp_path: Path) -> None:
    ctx, hold = context(tmp_path), Hold(context(tmp_path), "train", "steps")
    paused(ctx)
    assert hold() is True
    control.hold(tmp_path, 1, "server")
    assert hold() is True
    reason = progress(ctx)["reason"]
    assert reason.startswith("Paused by ann since ") and " and the guard server since " in reason
    ann, guard = ctx.holds()
    order(tmp_path, pause=holds.written(holds.without([ann, guard], [(ann["by"], ann["t"])])))
    assert hold() is True, "the guard still holds it"
    assert progress(ctx)["reason"].startswith("Paused by the guard server since ") and "ann" not in progress(ctx)["reason"]
    go_on(ctx)
    assert hold() is False
    assert kinds(ctx) == ["paused", "paused", "paused", "resumed"], "each change is told"
    said = [row["text"] for row in rows(tmp_path, "events.jsonl")]
    assert said[1].endswith("`eagle3 resume` ends the pauses of people; once more, those of guards.")


def test_a_pause_and_a_wait_for_space_are_both_told_and_their_time_is_counted_once(tmp_path: Path) -> None:
    ctx, now, free = context(tmp_path, disk_floor_bytes=1000, guards__disk_wait_s=60), [0.0], [0]
    hold = Hold(ctx, "extract", "samples", clock=lambda: now[0])
    room = DiskRoom(ctx, hold, clock=lambda: now[0], free_bytes=lambda: free[0])
    hold.done, hold.total = 3, 8
    assert not room.take(10) and not hold()
    now[0] = 10.0
    paused(ctx)
    assert hold() is True
    reason = progress(ctx)["reason"]
    assert reason.startswith("Paused by ann since ") and "Paused for want of space" in reason
    now[0] = 500.0
    assert not room.take(10), "a paused run does not give up"
    free[0] = 10_000
    assert room.take(10)
    assert progress(ctx)["reason"].startswith("Paused by ann") and "space" not in progress(ctx)["reason"]
    assert "Paused by ann" in rows(tmp_path, "events.jsonl")[-1]["text"], "that there is space again ends no pause"
    now[0] = 510.0
    go_on(ctx)
    assert hold() is False
    assert (hold.seconds, ctx.paused_s) == (510.0, 510.0)
    assert (progress(ctx)["done"], progress(ctx)["total"], progress(ctx)["reason"]) == (3, 8, "")


def test_the_end_of_a_pause_ends_no_wait_for_space(tmp_path: Path) -> None:
    ctx, now = context(tmp_path, disk_floor_bytes=1000, guards__disk_wait_s=60), [0.0]
    hold = Hold(ctx, "extract", "samples", clock=lambda: now[0])
    room = DiskRoom(ctx, hold, clock=lambda: now[0], free_bytes=lambda: 0)
    paused(ctx)
    assert hold() and not room.take(10)
    go_on(ctx)
    assert hold() is False
    assert progress(ctx)["reason"].startswith("Paused for want of space")
    assert "the run still waits. Paused for want of space" in rows(tmp_path, "events.jsonl")[-1]["text"]
    for now[0] in (0.0, 59.0):
        assert not room.take(10)
    now[0] = 61.0
    with pytest.raises(StageError, match="There was no space for 1 min"):
        room.take(10)


def test_a_pause_meant_for_another_attempt_does_not_hold(tmp_path: Path) -> None:
    order(tmp_path, attempt=2, pause={"by": "ann", "t": 1.0})
    assert Hold(context(tmp_path), "train")() is False


def test_an_order_that_is_no_order_does_not_hold_and_one_with_odd_words_does(tmp_path: Path) -> None:
    order(tmp_path, pause="yes")
    assert Hold(context(tmp_path), "train")() is False
    order(tmp_path, pause={"by": 7, "t": "noon", "also": "x"})
    assert Hold(context(tmp_path), "train")() is True


def test_a_stop_ends_the_waiting_of_a_paused_run(tmp_path: Path) -> None:
    ctx = context(tmp_path, stop_requested=lambda: True)
    paused(ctx)
    Hold(ctx, "train").wait(sleep=lambda _: None)
    assert kinds(ctx) == ["paused"]


def test_requests_under_way_end_and_none_is_begun_until_the_run_goes_on(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    hold, done = Hold(ctx, "regenerate", "answers"), []
    held = threading.Event()

    async def answer(number: int) -> None:
        done.append(number)
        if number == 2:
            paused(ctx)

    def watch() -> None:
        if hold() and not held.is_set():
            held.set()
            assert len(done) <= 4, "two of them were under way"
            go_on(ctx)

    asyncio.run(run_bounded(range(12), answer, concurrency=2, watch=watch, hold=hold))
    assert held.is_set()
    assert sorted(done) == list(range(12))


def test_a_stage_is_not_begun_while_the_run_is_paused_and_its_seconds_leave_the_pause_out(tmp_path: Path) -> None:
    ctx = context(tmp_path)

    def run(inside: StageContext) -> dict[str, Any]:
        inside.paused_s += 1000.0  # as a long pause in the middle would
        return {}

    over = threading.Event()

    def go_on_once_it_holds() -> None:
        while "paused" not in kinds(ctx) and not over.wait(0.01):
            pass
        go_on(ctx)

    stage = SimpleNamespace(OUTPUTS=(), spec_part=lambda spec: {}, run=run)
    paused(ctx)
    helper = threading.Thread(target=go_on_once_it_holds)
    helper.start()
    try:
        work.run_stage(ctx, "prepare", stage)  # type: ignore[arg-type]
    finally:
        over.set()
        helper.join()
    assert kinds(ctx)[:2] == ["paused", "resumed"]
    assert json.loads((tmp_path / "stages" / "prepare.json").read_text())["seconds"] < 0
