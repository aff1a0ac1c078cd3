"""Taking over a colleague's run: who watches, what happened since, and what can be asked of a run that is not one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.core.records import Happening, Probe, RunSummary, Since, Watcher
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer, News
from tests.tui.support.driving import until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui.alerting import happened_words
from tui.catalog import Catalog
from tui.screens.overview import also_here
from tui.state import RunView
from tui.widgets.headline import headline


def test_what_others_did_is_told_with_their_names_the_newest_last() -> None:
    since = Since(
        happenings=[
            Happening(t=1, run_id="a", kind="created", actor="ann", text="launched"),
            Happening(t=2, run_id="a", kind="stage-started", text="train starts"),
            Happening(t=3, run_id="a", kind="guard-nan", level="error", actor="worker", text="The loss is no number."),
            Happening(t=4, run_id="a", kind="stop_asked", level="warn", actor="bob", text="asked to stop now"),
        ],
        left_off=2,
    )
    words = happened_words(since, "2 h ago", most=2)
    assert words == "Since you last looked, 2 h ago: a The loss is no number.; bob: a asked to stop now; and 3 more before."
    assert happened_words(Since(), "now") == ""


def test_others_who_look_are_named_and_oneself_is_not() -> None:
    here = [Watcher(actor="ann"), Watcher(actor="bob\x1b[31m", watching="run-a"), Watcher(actor="bob", watching="run-a")]
    assert also_here(Probe(watchers=here), "ann") == "bob watches run-a"
    assert also_here(Probe(), "ann") == ""


async def test_on_return_the_container_is_asked_what_happened_by_its_own_clock(
    container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path: Path
) -> None:
    write_run(container.root, "run-a")
    path = tmp_path / "catalog.sqlite"
    async with make_app(catalog=Catalog(path)).run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running")
    clock.now += 7200
    container.happened = Since(
        happenings=[Happening(t=NOW, run_id="run-a", kind="stop_asked", actor="bob", text="asked to stop")]
    )
    async with make_app(catalog=Catalog(path)).run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "Since you last looked, 2 h ago: bob: run-a asked to stop.")
    assert container.since_asked == [NOW - 7200]


async def test_a_run_is_held_saved_and_let_go_on_from_the_screen(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("C")
        await until_seen(pilot, "run-a saves after the step")
        await pilot.press("P")
        await until_seen(pilot, "Pause the run?", "stopping frees them")
        await pilot.press("y")
        await until(pilot, lambda: ("run-a", "pause") in container.controls, "the pause")
        await until(pilot, lambda: pilot.app.console_state.open_run.summary.paused_at is not None, "its news")  # type: ignore[attr-defined]
        await pilot.press("P")
        await until(pilot, lambda: container.controls[-1] == ("run-a", "go-on"), "the end of the pause")
        await pilot.press("D")
        await until_seen(pilot, "The stacks of 2 processes")


async def test_a_guards_pause_outlasts_the_persons_and_the_screen_says_so(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    ann, guard = {"by": "ann", "t": NOW}, {"by": "the guard server", "t": NOW + 1, "guard": "server"}
    container.update("run-a", paused=[ann, guard], paused_by="ann", paused_at=NOW)
    async with make_app(run_id="run-a").run_test(size=(120, 30), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("P")
        await until_seen(pilot, "run-a is still held by the guard server")
        await until(pilot, lambda: pilot.app.console_state.open_run.summary.paused_by == guard["by"], "its news")  # type: ignore[attr-defined]
        await pilot.press("P")
        await until_seen(pilot, "run-a goes on; the guard server had paused it.")


async def test_others_are_told_which_run_is_looked_at_also_when_it_has_ended(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "failed")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✗ failed")
        assert container.watched == ["run-a"]


async def test_nothing_is_asked_of_a_run_that_has_ended(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "failed")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✗ failed")
        await pilot.press("C", "P", "D")
        await pilot.pause()
        assert container.controls == []


async def test_who_pauses_what_somebody_has_just_paused_is_told(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(120, 30), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("P")
        await until_seen(pilot, "Pause the run?")
        container.update("run-a", paused=[{"by": "ann", "t": NOW}], paused_by="ann", paused_at=NOW)
        await pilot.press("y")
        await until_seen(pilot, "run-a is paused already, by ann.")


@pytest.mark.parametrize("ended_at", [NOW - 5, None], ids=["ended", "live"])
def test_whose_run_it_is_goes_last_from_the_first_row(ended_at: float | None) -> None:
    run = RunSummary(
        run_id="smoke-20261130-225858-hv48", state="stopped" if ended_at else "running", actor="ann", attempt=2, now=NOW,
        label={"target": "smollm2-135m", "machine": "cpu"}, started_at=NOW - 60, ended_at=ended_at,
    )  # fmt: skip
    view = RunView(run.run_id)
    view.take(News(run), NOW)
    first = headline(view, NOW, stale=False, width=76)[0].plain
    assert first.endswith(" · launched by ann") and len(first) <= 76
    assert "smollm2-135m on cpu · attempt 2" in headline(view, NOW, stale=False, width=120)[0].plain
