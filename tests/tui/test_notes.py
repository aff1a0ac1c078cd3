"""Notes: read, written and saved beside other writers; nothing that was typed is lost."""

from __future__ import annotations

import pytest
from textual.widgets import TextArea

from eagle3.runner import notes
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import until, until_seen
from tests.tui.support.folders import write_run
from tui.settings import Settings
from tui.state import NotesView

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_written_is_saved_together_with_what_others_wrote_meanwhile(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    run = write_run(container.root, "run-a")
    notes.append(run, "# run-a\n")
    async with make_app(run_id="run-a").run_test(size=size) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "Notes of run-a", "# run-a", "i writes")
        await pilot.press("i", *"the rate was 5 p too low", "enter")
        await until_seen(pilot, "the rate was 5 p too low", "not saved")
        notes.append(run, "attempt 1 ended\n")
        await pilot.press("ctrl+s")
        await until_seen(pilot, "attempt 1 ended", "the rate was 5 p too low")
        await until(pilot, lambda: "too low" in (run / "NOTES.md").read_text(), "the file")
        assert (run / "NOTES.md").read_text().splitlines() == ["# run-a", "attempt 1 ended", "the rate was 5 p too low"]
        await pilot.press("escape")
        await until_seen(pilot, "i writes")
        await pilot.press("right_square_bracket")
        await until_seen(pilot, "Notes of the workspace")


async def test_a_save_that_fails_keeps_what_was_typed(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "i writes · as of now")
        await pilot.press("i", *"kept")
        await until_seen(pilot, "kept", "not saved")
        container.down = "The link is lost."
        await pilot.press("ctrl+s")
        await until_seen(pilot, "Not saved, and kept here: The link is lost.")
        await pilot.press("escape", "1", "q")
        await until_seen(pilot, "NOT saved")
        await pilot.press("escape", "7")
        await until_seen(pilot, "kept", "not saved")


async def test_a_read_only_console_opens_no_field_for_notes_that_it_could_not_save(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a")
    app = make_app(run_id="run-a", settings=Settings(read_only=True))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "i writes")
        await pilot.press("i")
        await until_seen(pilot, "nothing was changed")
        assert pilot.app.screen.query_one(TextArea).read_only


async def test_the_foot_of_notes_offers_no_letter_while_one_writes(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "i Edit  Ctrl+s Save")
        await pilot.press("i")
        await until_seen(pilot, "\n Ctrl+s Save  Esc Back  ")
        await pilot.press("escape")
        await until_seen(pilot, "i Edit  Ctrl+s Save")


async def test_notes_that_others_write_appear_while_nobody_types_here(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "i writes")
        notes.append(run, "from a colleague [bold]\x1b[31m\n")
        await pilot.press("1", "7")
        await until_seen(pilot, "from a colleague [bold]")


def test_what_was_typed_while_a_save_was_under_way_is_an_edit_of_what_was_sent() -> None:
    view = NotesView(base="a\n", text="a\nb\n", saving="a\nb\n")
    view.text = "a\nb\nc\n"
    view.take("a\ntheirs\nb\n", 1.0, saved=True)
    assert (view.base, view.text, view.changed) == ("a\nb\n", "a\nb\nc\n", True)
