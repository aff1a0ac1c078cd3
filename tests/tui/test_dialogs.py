"""Dialogs: over the screen that they are about, and with their choices in sight however small the window is."""

from __future__ import annotations

import pytest
from textual.widgets import Input
from textual.widgets._toast import Toast

from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run


@pytest.mark.parametrize(("key", "title"), [("n", "Note on run-a"), ("f", "Fork run-a")])
async def test_a_form_stands_over_its_screen_and_does_not_hide_it(
    container: FakeContainer, make_app: MakeApp, key: str, title: str
) -> None:
    write_run(container.root, "run-a", "stopped")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped")
        await pilot.press(key)
        rows = (await until_seen(pilot, title, "5 Runs")).splitlines()
        [top] = [row for row in rows if title in row]
        assert top.index("╭─ " + title) == (80 - len(top[top.index("╭─ " + title) :].split("╮")[0]) - 1) // 2, "in the middle"


async def test_the_choices_of_a_question_are_in_sight_in_a_small_window_and_its_rows_scroll(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(40, 12)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        assert "Readiness" not in await until_seen(pilot, "Launch the pilot?", "Host", "Launch  y", "Cancel  Esc")
        for _ in range(9):
            await pilot.press("pagedown")
        await until_seen(pilot, "It runs in the container", "Launch  y", "Cancel  Esc")
        await pilot.resize_terminal(80, 24)
        await until_seen(pilot, "Host", "Readiness", "It runs in the container", "Launch  y      Cancel  Esc")


async def test_in_a_small_window_the_field_that_is_typed_in_comes_in_sight(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "finished")
    async with make_app(run_id="run-a").run_test(size=(40, 12)) as pilot:
        await until_seen(pilot, "✓ finished")
        await pilot.press("f")
        await until_seen(pilot, "Fork run-a", "Begin at")
        await pilot.press("tab", *"train.max_steps=300")
        await until_seen(pilot, "train.max_steps=300 ")


async def test_in_a_small_window_every_screen_shows_some_of_what_it_is_for(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", steps=62)
    async with make_app(run_id="run-a").run_test(size=(40, 12)) as pilot:
        await until_seen(pilot, "● running", "Loss", "┤")
        await pilot.press("3")
        await until_seen(pilot, "data.prompts", "data.train_prompts")
        await pilot.press("2")
        await until_seen(pilot, "▾", "to look at")
        await pilot.press("enter")
        await until_seen(pilot, "Found")
        await pilot.press("5")
        await until_seen(pilot, "run-a")


async def test_the_same_note_stands_once(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("r", "r", "r")
        await until_seen(pilot, "can be resumed")
        notes = [note.message for note in pilot.app._notifications]
        assert sum("can be resumed" in note for note in notes) == 1


async def test_choices_that_do_not_stand_side_by_side_stand_one_below_the_other(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(40, 12)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?", "run-a", "After the checkpoint  c", "Now  n", "Keep running  Esc")


async def test_the_arrows_go_through_the_launch_form_from_its_first_choice_on(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        await pilot.press("down", "down", "down")
        await until(pilot, lambda: isinstance(pilot.app.focused, Input), "the first field")
        await pilot.press("up", "enter")
        await until_seen(pilot, "Esc Dismiss menu", "8x-b300")
        await pilot.press("escape")
        await until(pilot, lambda: "Dismiss" not in seen(pilot.app), "the menu to close")  # type: ignore[arg-type]


async def test_a_note_of_nothing_stays_open_so_that_what_is_typed_next_is_no_key(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("n")
        await until_seen(pilot, "Note on run-a")
        await pilot.press("enter", "s")
        await until_seen(pilot, "Nothing is written yet; Esc leaves it.")
        await pilot.press("enter")
        await until(pilot, lambda: (container.root / "run-a" / "NOTES.md").exists(), "the note")
        assert (container.root / "run-a" / "NOTES.md").read_text().rstrip().endswith(": s")


async def test_a_note_of_before_does_not_lie_on_a_form(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "finished")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "✓ finished")
        await pilot.press("P")
        await until_seen(pilot, "run-a has ended (finished)")
        await pilot.press("H")
        await until_seen(pilot, "Enter opens the host under the cursor")
        assert not pilot.app.screen.query(Toast)
        await pilot.press("escape")
        await until(pilot, lambda: bool(pilot.app.screen.query(Toast)), "the note, which is still of use")
