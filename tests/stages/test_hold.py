"""A paused run holds between two units of work, says so, is not taken for stalled, and its pauses are in no figure."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eagle3 import work
from eagle3.engines.completions import run_bounded
from eagle3.stages.context import StageContext
from eagle3.stages.hold import Hold
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


def test_a_pause_meant_for_another_attempt_does_not_hold(tmp_path: Path) -> None:
    order(tmp_path, attempt=2, pause={"by": "ann", "t": 1.0})
    assert Hold(context(tmp_path), "train")() is False


def test_an_order_that_is_no_order_does_not_hold(tmp_path: Path) -> None:
    order(tmp_path, pause="yes")
    assert Hold(context(tmp_path), "train")() is False


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

    stage = SimpleNamespace(OUTPUTS=(), spec_part=lambda spec: {}, run=run)
    paused(ctx)
    threading.Timer(0.3, go_on, [ctx]).start()
    work.run_stage(ctx, "prepare", stage)  # type: ignore[arg-type]
    assert kinds(ctx)[:2] == ["paused", "resumed"]
    assert json.loads((tmp_path / "stages" / "prepare.json").read_text())["seconds"] < 0
