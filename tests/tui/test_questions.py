"""Questions: Enter takes the answer that changes nothing, and no key answers that nobody can have meant as an answer."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.pilot import Pilot

from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run
from tui.screens.confirm import Choice, Confirm
from tui.screens.question import TOO_SOON, Question


def typed(pilot: Pilot[int], key: str, at: float) -> None:
    """A key that was pressed ``at`` by the clock of events, as the terminal's driver hands it on."""
    event = events.Key(key, key)
    event.time = at
    pilot.app.post_message(event)


async def painted_at(pilot: Pilot[int]) -> float:
    question = pilot.app.screen
    assert isinstance(question, Question)
    await until(pilot, lambda: question._quiet_since is not None, "the question to be painted")
    return question._quiet_since or 0.0


@pytest.mark.parametrize(
    ("state", "key", "title", "safe"),
    [
        ("running", "p", "Launch the pilot?", "Cancel"),
        ("running", "s", "Stop the run?", "Keep running"),
        ("running", "P", "Pause the run?", "Keep running"),
        ("stopped", "r", "Resume the run?", "Cancel"),
    ],
)
async def test_enter_changes_nothing_and_the_foot_says_so(
    container: FakeContainer, make_app: MakeApp, state: str, key: str, title: str, safe: str
) -> None:
    write_run(container.root, "run-a", state)
    app = make_app(run_id="run-a")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, state, "Stages")
        await pilot.press(key)
        await until_seen(pilot, title, f"Enter: {safe} · arrows choose")
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, Confirm), "the question to close")
        assert (container.launches, container.stops, container.controls) == ([], [], [])


async def test_the_arrows_light_another_answer_and_the_foot_follows(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("s")
        await until_seen(pilot, "Enter: Keep running")
        await pilot.press("right")
        await until_seen(pilot, "Enter: After the checkpoint")
        await pilot.press("enter")
        await until(pilot, lambda: container.stops == [("run-a", "after-checkpoint")], "the stop")


async def test_what_was_typed_before_a_question_could_be_read_does_not_answer_it(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Question, "read_s", 0.3)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        shown = await painted_at(pilot)
        for number, key in enumerate(["ython", "right", "enter", "y"][0] + "y"):
            typed(pilot, key, shown + 0.12 * (number - 1))  # on and on, the first before the picture
        for key in ("right", "enter", "y"):
            typed(pilot, key, shown + 0.7)
        await until_seen(pilot, TOO_SOON)
        await pilot.pause()
        assert isinstance(pilot.app.screen, Confirm) and container.launches == []
        typed(pilot, "y", shown + 1.2)
        await until(pilot, lambda: bool(container.launches), "the launch, by a key after a pause")


def anyway() -> Confirm:
    """A question that nobody asked for."""
    return Confirm("Launch it anyway?", [], [Choice("anyway", "a", "Launch anyway", danger=True)])


async def test_a_question_that_comes_by_itself_is_not_answered_by_who_writes(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Question, "read_s", 0.3)
    app, answers = make_app(), []
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        app.ask_over(anyway(), answers.append)
        await until_seen(pilot, "Launch it anyway?")
        shown = await painted_at(pilot)
        for number, key in enumerate("a data path"):
            typed(pilot, "space" if key == " " else key, shown + 0.1 * (number + 1))
        await until_seen(pilot, TOO_SOON)
        await pilot.press("escape")  # the way out is always open
        await until(pilot, lambda: answers == [""], "the answer that changes nothing")


async def test_a_key_before_the_first_picture_is_refused_and_the_foot_goes_on_saying_so(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Question, "read_s", 0.3)
    app, answers = make_app(), []
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        app.ask_over(anyway(), answers.append)
        typed(pilot, "a", 0.0)
        await until_seen(pilot, "Launch it anyway?")
        shown = await painted_at(pilot)
        assert TOO_SOON in seen(app) and answers == []
        typed(pilot, "right", shown + 0.4)  # what counts tells again what Enter does
        await until_seen(pilot, "Enter: Launch anyway")


async def test_the_way_back_to_the_shell_is_open_over_a_question_help_and_a_field_but_not_while_notes_are_written(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Question, "read_s", 30.0)
    write_run(container.root, "run-a")
    app = make_app(run_id="run-a")
    went: list[str] = []
    monkeypatch.setattr(app, "action_suspend_process", lambda: went.append(type(app.screen).__name__))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        for key, title in (
            ("p", "Launch the pilot?"),
            ("question_mark", "close it"),
            ("n", "Note on run-a"),
            ("f", "Fork run-a"),
        ):
            await pilot.press(key)
            await until_seen(pilot, title)
            before = len(went)
            await pilot.press("ctrl+z")
            await until(pilot, lambda before=before: len(went) == before + 1, f"the shell, from '{title}'")  # type: ignore[misc]
            await pilot.press("escape")
            await until_seen(pilot, "Stages")
        await pilot.press("7")
        await until_seen(pilot, "i writes")
        await pilot.press("i", "x", "y", "ctrl+z")
        await until_seen(pilot, "writing")
        assert len(went) == 4, "there it takes back what was typed"


async def test_a_key_that_comes_before_the_question_is_even_made_is_dropped_and_breaks_nothing(make_app: MakeApp) -> None:
    app, answers = make_app(), []
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        question = Confirm("Launch it?", [], [Choice("anyway", "a", "Launch", danger=True)])
        app.push_screen(question, answers.append)
        assert not question.query("#dialog")
        await app.on_event(events.Key("a", "a"))
        await until_seen(pilot, "Launch it?")
        assert answers == []


async def test_a_launch_that_waits_for_its_host_is_told_and_not_left_in_silence(
    container: FakeContainer, make_app: MakeApp
) -> None:
    container.held, container.down = asyncio.Event(), "no route"
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.console_state.link.status == "down", "the link to be down")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "box does not answer;")
        await pilot.press("q")
        await until_seen(pilot, "has not been answered;", "Enter: Stay")
