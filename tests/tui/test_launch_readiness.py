"""No launch past a red report without saying so twice; none on an old report; and the run keeps the report it began under."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remote.errors import ContainerError
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import until, until_seen
from tests.tui.support.facts import GIB, LITTLE, facts
from tui.screens.confirm import Confirm
from tui.screens.readiness import ReadinessScreen

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_the_confirmation_shows_the_verdict_and_the_run_keeps_the_report(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    async with make_app().run_test(size=size) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "Readiness", "▲ ready with warnings, now")
        await pilot.press("y")
        await until_seen(pilot, "● running", "Stages")
    [report] = container.reports
    assert report is not None
    assert (report["verdict"], report["host"], report["about"]["size"]) == ("ready with warnings", "box", "pilot")
    assert report["about"]["spec"] and any(check["id"] == "host.memory" for check in report["checks"])


@pytest.mark.parametrize("size", SIZES)
async def test_a_red_report_needs_a_second_answer_that_names_what_fails(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    container.known = facts(**LITTLE)
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "✗ not ready, now")
        await pilot.press("y")
        await until_seen(pilot, "Not ready: launch the pilot anyway?", "host.memory", "1.0 GiB available of 24.0 GiB")
        assert container.launches == []
        await pilot.press("enter")  # the default leads to what fails, not to the launch
        await until_seen(pilot, "✗ not ready", "✗ Memory")
        assert isinstance(app.screen, ReadinessScreen) and container.launches == []
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "not ready")
        await pilot.press("y")
        await until_seen(pilot, "launch the pilot anyway?")
        await pilot.press("a")
        await until_seen(pilot, "● running", "Stages")
    assert container.reports[0] is not None and container.reports[0]["verdict"] == "not ready"


async def test_an_old_report_and_one_for_another_spec_are_asked_again(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        for age_s, asks in ((0, 1), (300, 0), (400, 1)):
            clock.now += age_s
            before = len(container.asked)
            await pilot.press("p")
            await until_seen(pilot, "Launch the pilot?", "▲ ready with warnings")
            await until(pilot, lambda: app.checking.view(app_spec(app)).asking is None, "the check")
            assert len(container.asked) == before + asks, f"after {age_s} s more"
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, Confirm), "the dialog to close")
        app.choose("train.max_steps", "70")
        before = len(container.asked)
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "70 steps", "▲ ready with warnings, now")
        assert len(container.asked) == before + 1


def app_spec(app: Any) -> Any:
    from tui import plan

    return plan.resolve(app.choices.with_size("pilot"))


async def test_a_launch_confirmed_while_the_check_runs_waits_for_it(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    container.held = asyncio.Event()
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "◌ checking…")
        await pilot.press("y")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Confirm), "the dialog to close")
        assert container.launches == []
        container.known["host"]["memory_available_bytes"] = 20 * GIB
        container.held.set()
        await until_seen(pilot, "● running", "Stages")


async def test_a_question_that_stood_for_long_is_answered_with_a_new_report(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "▲ ready with warnings")
        clock.now += 700
        container.known = facts(**LITTLE)
        await pilot.press("y")
        await until_seen(pilot, "Not ready: launch the pilot anyway?", "host.memory")
        assert len(container.asked) == 2 and container.launches == []


async def test_where_nothing_can_be_learnt_that_too_is_a_second_question(container: FakeContainer, make_app: MakeApp) -> None:
    async def broken(wants: Any, sections: Any = None) -> dict[str, Any]:
        raise ContainerError("busy", "The disk hangs.", "Ask again.")

    container.facts = broken  # type: ignore[method-assign]
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "? could not be checked: The disk hangs.")
        await pilot.press("y")
        await until_seen(pilot, "Readiness is not known: launch the pilot anyway?", "The disk hangs. Ask again.")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Confirm), "the dialog to close")
        assert container.launches == []
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "anyway?")
        await pilot.press("a")
        await until_seen(pilot, "● running", "Stages")
    assert container.reports == [None], "no report is made up"


async def test_the_form_shows_the_verdict_once_it_stands_still(container: FakeContainer, make_app: MakeApp, clock: Clock) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run", "Readiness  not checked yet")
        assert container.asked == []
        clock.now += 2
        await until_seen(pilot, "Readiness  ▲ ready with warnings, now")
        assert len(container.asked) == 1


async def test_a_runs_details_name_the_report_it_was_started_under(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "not ready")
        await pilot.press("y")
        await until_seen(pilot, "launch the pilot anyway?")
        await pilot.press("a")
        await until_seen(pilot, "● running", "Stages")
        await pilot.press("v")
        screen = await until_seen(pilot, "Started under", "✗ not ready as of", "light checks", "(report.json)")
        assert "✗ failed   host.memory" in screen and "more to look at" in screen


async def test_a_run_without_a_report_says_so(container: FakeContainer, make_app: MakeApp) -> None:
    from tests.tui.support.folders import write_run

    write_run(container.root, "run-a")
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "Stages")
        await pilot.press("v")
        await until_seen(pilot, "Started under", "none was recorded")
