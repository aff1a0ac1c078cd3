"""Room for the whole of an extraction, waited for before its server starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.stages import extract
from eagle3.stages.context import StageError, Stopped
from eagle3.stages.hold import Hold
from eagle3.stages.room import SLACK, DiskRoom
from tests.stages.extraction import made
from tests.stages.runs import context, rows
from tests.support.guards import the_guard


def test_a_disk_that_is_too_full_for_the_whole_stage_is_waited_for_before_a_server_starts(tmp_path: Path) -> None:
    ctx = made(tmp_path, disk_floor_bytes=1 << 60)
    ctx.stop_requested = lambda: bool([row for row in rows(tmp_path, "events.jsonl") if row["kind"] == "guard-disk"])
    with pytest.raises(Stopped):
        extract.run(ctx)
    guard = the_guard(rows(tmp_path, "events.jsonl"), "disk")
    assert guard["guard"]["response"] == "pause" and "the states of this stage need" in guard["text"]
    assert json.loads((tmp_path / "progress.json").read_text())["reason"].startswith("Paused for want of space")
    assert not (tmp_path / "logs" / "server-extract.log").exists()


def test_it_ends_the_stage_at_once_where_the_spec_gives_no_time_for_waiting(tmp_path: Path) -> None:
    ctx = made(tmp_path, disk_floor_bytes=1 << 60, guards__disk_wait_s=0)
    with pytest.raises(StageError, match=r"B free.*resume the run"):
        extract.run(ctx)


def test_a_wait_for_the_whole_stage_goes_on_by_itself_and_leaves_the_room_for_the_samples(tmp_path: Path) -> None:
    ctx, free = context(tmp_path, disk_floor_bytes=1000), [1499]
    room = DiskRoom(ctx, Hold(ctx, "extract", "samples"), free_bytes=lambda: free[0])
    room.wait(500, sleep=lambda seconds: free.__setitem__(0, 1500 + int(SLACK * 1000)))
    assert [row["kind"] for row in rows(tmp_path, "events.jsonl")] == ["guard-disk", "resumed"]
    assert room.take(500), "what it waited for is not taken by the wait itself"
