"""What comes by itself takes nothing from the operator: no question, no letter, no page, no cursor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from eagle3.core.records import RunSummary
from remote.ask import Ask, SecretQuestion
from remote.errors import LinkError
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui import messages
from tui.app import ConsoleApp
from tui.fleet import Place
from tui.login import ask_secret
from tui.screens.confirm import Choice, Confirm
from tui.screens.note import NoteScreen
from tui.screens.question import TOO_SOON, Question
from tui.screens.secret import Secret
from tui.widgets.runs_table import RunsTable

PASSWORD = SecretQuestion("gate", "Password")


def launched(app: ConsoleApp, run_id: str) -> None:
    app.post_message(messages.OfHost("box", messages.Launched(run_id, {}, False)))


async def test_a_launch_that_is_answered_late_closes_no_question_of_another_host(
    container: FakeContainer, make_app: MakeApp
) -> None:
    """Before, its login waited for ever, and no other could ask any more."""
    write_run(container.root, "run-a")
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "run-a")
        asked = asyncio.create_task(ask_secret(app, PASSWORD))
        await until_seen(pilot, "gate asks: Password")
        launched(app, "run-a")
        await until(pilot, lambda: app.console_state.open_run is not None, "the launch")
        await pilot.press(*"sesame", "enter")
        assert await asyncio.wait_for(asked, 20) == "sesame"
        await until_seen(pilot, "run-a is open; press 4 to see it.")


async def test_a_launch_that_is_answered_late_makes_no_keys_of_what_is_being_written(
    container: FakeContainer, make_app: MakeApp
) -> None:
    run = write_run(container.root, "run-a")
    app = make_app(run_id="run-a")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("7")
        await until_seen(pilot, "i writes")
        await pilot.press("i", *"slow")
        write_run(container.root, "run-b", created_at=NOW)
        launched(app, "run-b")
        await until(pilot, lambda: getattr(app.console_state.open_run, "run_id", "") == "run-b", "the launch")
        await pilot.press(*" sPs")
        await until_seen(pilot, "Notes of run-a", "slow sPs")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: (run / "NOTES.md").exists(), "the notes of the run that they were written on")
        assert (run / "NOTES.md").read_text() == "slow sPs\n"
        assert not (container.root / "run-b" / "NOTES.md").exists()


@pytest.mark.parametrize(("key", "title"), [("7", "Notes of run-a"), ("6", "run-a  run.log")])
async def test_a_run_of_somebody_else_takes_no_page_from_under_a_reader(
    container: FakeContainer, make_app: MakeApp, key: str, title: str
) -> None:
    write_run(container.root, "run-a")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a", "● up since")
        await pilot.press(key)
        await until_seen(pilot, title.split()[-1])
        assert "run-a" in seen(app)
        write_run(container.root, "run-b", created_at=NOW)
        await until(pilot, lambda: app.console_state.latest_run() == "run-b", "the other run")
        app.screen._poll()  # type: ignore[attr-defined]
        await pilot.pause()
        app.present()
        assert "run-a" in seen(app) and "run-b" not in seen(app)


async def test_where_the_run_under_the_cursor_goes_the_cursor_keeps_its_place(
    container: FakeContainer, make_app: MakeApp
) -> None:
    for number, name in enumerate(["run-a", "run-b", "run-c"]):
        write_run(container.root, name, created_at=NOW - number)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-c")
        await pilot.press("down")
        (container.root / "run-b" / "summary.json").unlink()
        await until(pilot, lambda: "run-b" not in app.console_state.runs and "run-b" not in seen(app), "it to be gone")
        assert app.screen.query_one(RunsTable).current() == "run-c"


async def test_a_note_that_is_added_while_a_question_stands_closes_the_note_and_not_the_question(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a")
    app, answers = make_app(run_id="run-a"), []
    held = asyncio.Event()
    plain = container.add_note

    async def add_note(line: str, run_id: str = "") -> Any:
        await held.wait()
        return await plain(line, run_id)

    container.add_note = add_note  # type: ignore[method-assign]
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("n")
        await until_seen(pilot, "Note on run-a")
        await pilot.press("x", "enter")
        app.ask_over(Confirm("Launch it anyway?", [], [Choice("anyway", "a", "Launch anyway")]), answers.append)
        await until_seen(pilot, "Launch it anyway?")
        held.set()
        await until(pilot, lambda: (container.root / "run-a" / "NOTES.md").exists(), "the note")
        await pilot.pause()
        assert answers == [] and isinstance(app.screen, Confirm)
        await pilot.press("a")
        await until(pilot, lambda: not any(isinstance(s, NoteScreen) for s in app.screen_stack), "the note to close")
        assert answers == ["anyway"]


async def test_a_login_that_the_host_gives_up_takes_its_question_away(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "none yet")
        asked = asyncio.create_task(ask_secret(app, PASSWORD))
        await until_seen(pilot, "gate asks: Password")
        asked.cancel()
        await until(pilot, lambda: not isinstance(app.screen, Secret), "the question to go")
        await until_seen(pilot, "gate no longer waits for an answer")


async def test_a_password_is_not_begun_by_who_was_typing_when_it_was_asked_for(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Question, "read_s", 0.3)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        asked = asyncio.create_task(ask_secret(app, PASSWORD))
        await until_seen(pilot, "gate asks: Password")
        question = app.screen
        assert isinstance(question, Question)
        await until(pilot, lambda: question._quiet_since is not None, "the question to be painted")
        shown = question._quiet_since or 0.0
        for number, key in enumerate(["f", "o", "o", "enter"]):
            typed(pilot, key, shown + 0.1 * (number + 1))
        await until_seen(pilot, TOO_SOON)
        for number, key in enumerate(["k", "e", "y", "enter"]):
            typed(pilot, key, shown + 1.0 + 0.1 * number)  # once it was read nothing is too soon
        assert await asyncio.wait_for(asked, 20) == "key"


def typed(pilot: Pilot[Any], key: str, at: float) -> None:
    event = events.Key(key, key if len(key) == 1 else None)
    event.time = at
    pilot.app.post_message(event)


async def test_no_note_lies_on_the_answers_of_a_question_and_none_is_lost(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    app = make_app(run_id="run-a")
    async with app.run_test(size=(40, 12), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        app.tell("Slow link.", "warning")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?", "After the checkpoint  c", "Now  n", "Keep running  Esc")
        app.tell("Disk /data: 4.0 GiB free", "warning")
        await pilot.pause(0.2)
        screen = seen(app)
        assert "4.0 GiB" not in screen and "Slow" not in screen and "Keep running  Esc" in screen
        await pilot.press("escape")
        await until(pilot, lambda: any("4.0 GiB free" in note.message for note in app._notifications), "the note")


async def test_what_fails_beside_a_launch_lets_no_second_launch_begin(container: FakeContainer, make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        app.console_state.launching = "pilot-1"
        app.post_message(messages.OfHost("box", messages.AskFailed("Reading all rows of run-a", "The link is lost.")))
        await pilot.pause()
        assert app.console_state.launching == "pilot-1"
        app.post_message(messages.OfHost("box", messages.AskFailed("Launching pilot-1", "It is busy.")))
        await until(pilot, lambda: not app.console_state.launching, "the end of the launch")


@pytest.mark.parametrize(("key", "asked"), [("6", "log_page"), ("7", "notes")])
async def test_while_questions_are_held_back_logs_and_notes_ask_none(
    container: FakeContainer, make_app: MakeApp, key: str, asked: str
) -> None:
    write_run(container.root, "run-a")
    app, calls = make_app(run_id="run-a"), []
    plain: Callable[..., Any] = getattr(container, asked)

    async def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(asked)
        return await plain(*args, **kwargs)

    setattr(container, asked, counted)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("ctrl+k", key)
        await until(pilot, lambda: bool(calls), "what the operator asked for")
        await until_seen(pilot, "held", "follows" if key == "6" else "as of")
        before = len(calls)
        app.screen._poll()  # type: ignore[attr-defined]
        await pilot.pause(0.2)
        assert len(calls) == before
        await pilot.press("1", "ctrl+k", key)  # in the notes that key is the field's
        app.screen._poll()  # type: ignore[attr-defined]
        await until(pilot, lambda: len(calls) > before, "the news")


class Nowhere(FakeContainer):
    """A host that there is not."""

    async def open(self, *, persist: bool = False) -> None:
        self.set_link("connecting")
        reason = "There is no host called gpu-bxo (Name or service not known). Check the name."
        self.set_link("down", NOW, reason)
        raise LinkError("unreachable", reason)

    async def probe(self) -> Any:
        raise LinkError("unreachable", "It is not connected.")


async def test_a_host_name_that_is_wrong_comes_back_as_it_was_typed(container: FakeContainer, make_app: MakeApp) -> None:
    places = {"gpu-bxo": Nowhere(container.root), "gpu-box": FakeContainer(container.root)}
    app = make_app(dial=lambda name: places[name])
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since")
        await pilot.press("H")
        await until_seen(pilot, "or another, as for ssh")
        await pilot.press("tab", *"gpu-bxo", "enter")
        await until_seen(pilot, "There is no host called gpu-bxo", "Mend it and press Enter")
        field = app.screen.query_one(Input)
        assert field.has_focus and field.value == "gpu-bxo"
        await pilot.press("backspace", "backspace", *"ox", "enter")
        await until(pilot, lambda: list(app.members) == ["box", "gpu-box"], "the right one in its place")
        await until(pilot, lambda: app.front.name == "gpu-box" and places["gpu-bxo"].closed == 1, "the wrong one to go")


async def test_a_host_that_is_listed_and_down_asks_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    away = Nowhere(container.root)
    app = make_app(others=[Place("away", away)])
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since")
        await until(pilot, lambda: app.members["away"].console.link.status == "down", "its link")
        assert len(app.screen_stack) == 1


async def test_a_name_with_markup_is_a_name(container: FakeContainer, make_app: MakeApp) -> None:
    def connect(on_link: Any, ask: Ask, workspace: str) -> Any:
        return container(on_link, ask, workspace)

    app = ConsoleApp(connect, host="[/x] root@[::1]", poll_s=0.05)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● up since")
        await pilot.press("7", "right_square_bracket")
        await until_seen(pilot, "Notes of the workspace on [/x] root@[::1]")
        assert isinstance(app.focused, TextArea)


async def test_a_folder_that_is_gone_and_half_a_character_are_told_or_marked_and_end_nothing(
    container: FakeContainer, make_app: MakeApp, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(container.root, "run-a", label={"target": "t\ud800", "size": "pilot", "machine": "cpu"})
    # From the wire it comes as text, not as JSON, whose reader would refuse it.
    read = lambda run: RunSummary.model_validate(json.loads((run / "summary.json").read_text()))  # noqa: E731
    monkeypatch.setattr(container, "_summary", read)
    here = tmp_path / "gone"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    app = make_app()
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        await until_seen(pilot, "run-a", "t\ufffd")
        await pilot.press("e")
        await until_seen(pilot, "cannot be written", "start the console elsewhere")
        await pilot.press("W")
        await until_seen(pilot, "cannot be recorded to")
        app.copy_to_clipboard("a\ud800b")
        assert app.clipboard == "a?b"
        monkeypatch.chdir(tmp_path)
        await pilot.press("e")
        await until(pilot, lambda: any(tmp_path.glob("eagle3-overview-*.svg")), "the picture")
