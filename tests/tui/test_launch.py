"""Launching: one confirmation, one run id, never two runs."""

from __future__ import annotations

import re

import pytest
from textual.widgets import Button, Input, Select

from eagle3.core import presets
from eagle3.core.stage_order import STAGES
from remote.errors import ContainerError
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tui.screens.confirm import Confirm

SIZES = [(80, 24), (120, 40)]
PILOT, SMOKE = (presets.resolve(size, "smollm2-135m", "cpu") for size in ("pilot", "smoke"))


@pytest.mark.parametrize("size", SIZES)
async def test_p_launches_the_pilot_after_one_confirmation(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    async with make_app().run_test(size=size) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        screen = await until_seen(pilot, "Launch the pilot?")
        for text in (
            "box",
            "smollm2-135m",
            f"{PILOT.data.train_prompts} prompts",
            f"{PILOT.train.max_steps} steps",
            "37.0 GiB free",
        ):
            assert text in screen
        match = re.search(r"pilot-\d{8}-\d{6}-[a-z0-9]{4}", screen)
        assert match is not None
        await pilot.press("y")
        await until_seen(pilot, "● running", match.group(), "Stages")
        assert container.launches == [(match.group(), "pilot", False)]


async def test_escape_launches_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Confirm), "the dialog to close")
        assert container.launches == []


async def test_hammering_the_keys_launches_once(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y", "y", "p", "y", "enter", "p", "y")
        await until(pilot, lambda: len(container.launches) >= 1, "the launch")
        await until_seen(pilot, "● running")
        ids = {run_id for run_id, _, _ in container.launches}
        # A second deliberate p after the first was answered is a second launch; each id was launched once.
        assert len(ids) == len(container.launches)


async def test_a_link_lost_while_launching_asks_again_under_the_same_id(container: FakeContainer, make_app: MakeApp) -> None:
    container.lost_launches = 1
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "● running", "Stages")
        assert len(container.launches) == 2
        assert len({run_id for run_id, _, _ in container.launches}) == 1
        assert len(list(container.root.iterdir())) == 1


async def test_a_refused_launch_says_why_and_can_be_tried_again(container: FakeContainer, make_app: MakeApp) -> None:
    container.launch_problem = ContainerError("disk", "The disk is full.", "Free 3 GiB on /data.")
    async with make_app().run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "Free 3 GiB")  # the note breaks its lines where it likes
        container.launch_problem = None
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "● running", "Stages")


@pytest.mark.parametrize("size", SIZES)
async def test_the_form_says_what_the_run_will_do(make_app: MakeApp, size: tuple[int, int]) -> None:
    async with make_app().run_test(size=size) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        screen = await until_seen(pilot, "New run", "What it will do", "37.0 GiB free on /")
        for text in ("Size", "pilot", "smollm2-135m", "cpu", "data.train_prompts", "train.max_steps", "data.prompts"):
            assert text in screen
        for stage in ("prepare", "regenerate", "extract", "vocabulary", "train", "evaluate", "export"):
            assert stage in screen
        await until_seen(pilot, "Ctrl+l Launch", "Launch  Ctrl+l")


async def test_each_stage_of_the_estimate_is_one_line_at_any_width(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        for columns, rows in ((80, 24), (110, 40), (120, 40), (200, 50)):
            await pilot.resize_terminal(columns, rows)
            row = re.compile(rf"({'|'.join(STAGES)}) +\d[^│]* (?:measured|derived)[ ▁-█]*│")
            await until(
                pilot,
                lambda row=row: row.findall(seen(pilot.app)) == [*STAGES],  # type: ignore[misc, arg-type]
                f"seven unbroken lines at {columns} columns",
            )


async def test_what_is_wrong_is_said_while_typing_and_nothing_launches(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#train-max_steps", Input).focus()
        await pilot.press("x", "1")
        screen = await until_seen(pilot, "train.max_steps is wrong; see the line under it.")
        assert " ".join(screen.split()).count("a whole number of 1 or more (steps), not 'x1'.") == 1
        assert pilot.app.screen.query_one("#launch", Button).disabled
        await pilot.press("enter")
        await pilot.press("ctrl+l")
        assert container.launches == []
        await pilot.press("home", "delete")
        await until_seen(pilot, "1 field differs from the preset")
        assert "is wrong" not in seen(pilot.app)  # type: ignore[arg-type]


async def test_what_is_wrong_with_the_field_in_front_is_in_sight_below_other_wrong_ones(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        for name in ("train-max_steps", "train-learning_rate"):
            pilot.app.screen.query_one(f"#{name}", Input).focus()
            await pilot.press("minus", "1")
            await until_seen(pilot, ", not -1.")
        await until_seen(pilot, "are wrong; see", "a number above 0 and of at most 1, not -1.")
        for columns, rows in ((80, 20), (40, 12), (200, 60)):
            await pilot.resize_terminal(columns, rows)
            await until_seen(pilot, "a number above 0 and of at most")


async def test_a_field_that_is_typed_in_never_goes_away_under_the_letters(container: FakeContainer, make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        app.choose("train.seed", "7")  # in the form for its text alone
        await pilot.press("3")
        await until_seen(pilot, "New run")
        field = app.screen.query_one("#train-seed", Input)
        field.focus()
        await pilot.press("end", "backspace", *"pq")
        assert (app.focused, field.value) == (field, "pq")
        assert not isinstance(app.screen, Confirm)


async def test_a_problem_is_said_once_on_the_form_and_never_stops_p_elsewhere(
    container: FakeContainer, make_app: MakeApp
) -> None:
    async with make_app().run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#workspace", Input).value = "/data/eagle3"
        pilot.app.screen.query_one("#train-max_steps", Input).focus()
        await pilot.press("x", "1")
        await until_seen(pilot, "train.max_steps is wrong")
        await pilot.press("ctrl+l", "ctrl+l")
        assert len(pilot.app._notifications) == 0
        await pilot.press("escape", "escape")
        await until_seen(pilot, "GPU memory")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "/data/eagle3", f"{PILOT.train.max_steps} steps")


async def test_the_form_launches_what_it_says(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#size", Select).value = "smoke"
        await until(pilot, lambda: "vocabulary.size" not in seen(pilot.app), "the few fields of a smoke")  # type: ignore
        pilot.app.screen.query_one("#data-train_prompts", Input).focus()
        await pilot.press(*"17", "enter")
        await until_seen(pilot, "Launch the smoke?", "17 prompts")
        await pilot.press("y")
        await until_seen(pilot, "● running", "Stages")
        [(run_id, size, resume)] = container.launches
        assert (run_id.startswith("smoke-"), size, resume) == (True, "smoke", False)


async def test_another_workspace_is_where_the_run_goes(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#workspace", Input).focus()
        pilot.app.screen.query_one("#workspace", Input).value = "/data/eagle3"
        await pilot.press("enter")
        await until_seen(pilot, "Launch the pilot?", "/data/eagle3")
        await pilot.press("y")
        await until_seen(pilot, "● running", "Stages")
        assert container.workspaces == ["~/eagle3", "/data/eagle3"]


async def test_letters_typed_into_a_field_are_not_keys(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#data-prompts", Input).focus()
        await until_seen(pilot, "\n Ctrl+l Launch  Esc Back  ")  # and the foot offers none of them
        await pilot.press(*"/pq1e")
        assert pilot.app.screen.query_one("#data-prompts", Input).value == "/pq1e"
        assert not isinstance(pilot.app.screen, Confirm)


async def test_escape_leaves_a_field_and_then_the_screen_and_keeps_what_was_typed(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        pilot.app.screen.query_one("#train-max_steps", Input).focus()
        await pilot.press(*"70")
        await until_seen(pilot, "Esc leaves the field")
        await pilot.press("escape", "p")
        await until_seen(pilot, "Launch the pilot?", "70 steps")
        await pilot.press("escape", "escape")
        await until_seen(pilot, "GPU memory")
