"""What the operator is called for: each fact when it comes, and again when it comes back."""

from __future__ import annotations

from itertools import pairwise

from eagle3.core.records import Disk, RunSummary
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import GIB, FakeContainer
from tests.tui.support.driving import seen, until_seen
from tests.tui.support.folders import NOW, write_run
from tui.alerting import of_disks, of_runs, over_disks, over_runs
from tui.calling import Caller
from tui.settings import AlertSettings


def run(state: str, now: float = 0.0) -> RunSummary:
    return RunSummary(run_id="a", state=state, attempt=1, now=now)  # type: ignore[arg-type]


def caller(told: list[str]) -> Caller:
    return Caller(AlertSettings(), host="box", clock=Clock(), ring=list, notify=told.append, tell=told.append)


async def test_the_end_of_the_run_that_is_looked_at_is_told_though_no_probe_has_seen_it(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a", poll_s=600.0).run_test(size=(120, 40), notifications=True) as pilot:
        await until_seen(pilot, "● running", "● up since")
        container.update("run-a", state="failed", state_text="exit code 1", ended_at=NOW)
        await until_seen(pilot, "run-a: ✗ failed (exit code 1)")


def test_a_run_that_stalls_again_is_told_again() -> None:
    told: list[str] = []
    calls, states = caller(told), ["running", "stalled", "running", "stalled", "stalled"]
    for before, now in pairwise(states):
        calls.forget(*over_runs({"a": run(before)}, [run(now)]))
        calls.take(of_runs({"a": run(before)}, [run(now)]))
    assert len(told) == 2


def test_a_disk_that_is_full_again_is_told_again_but_not_at_each_file() -> None:
    told: list[str] = []
    calls = caller(told)
    for free in (20, 4, 6, 4, 8, 4):  # of 100 GiB: full at 5, room again from 7 on
        disks = [Disk(path="/data", total_bytes=100 * GIB, free_bytes=free * GIB)]
        calls.forget(*over_disks(disks))
        calls.take(of_disks(disks))
    assert told == ["Disk /data: 4.0 GiB free"] * 2


def test_an_answer_that_was_asked_for_before_is_no_news() -> None:
    failed, late = {"a": run("failed", now=20.0)}, [run("running", now=19.0)]
    assert of_runs(failed, late) == [] and over_runs(failed, late) == []


async def test_another_workspace_is_not_one_whose_runs_are_gone(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-here")
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "run-here", "● up since")
        elsewhere = container.root.parent / "elsewhere"
        elsewhere.mkdir()
        container.root = elsewhere
        write_run(elsewhere, "run-there")
        app.session.move("/somewhere/else")
        await pilot.press("5")
        await until_seen(pilot, "run-there")
        assert "run-here" not in seen(app)
