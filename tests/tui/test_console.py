"""Going about: keys, help, palette, leaving, pictures, questions of the login."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.binding import Binding

from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run
from tui.app import ConsoleApp
from tui.keymap import KEYS, key_label, keys_of
from tui.ports import ContainerPort, OnLink
from tui.screens.compare import CompareScreen
from tui.screens.confirm import Confirm
from tui.screens.launch import LaunchScreen
from tui.screens.logs import LogsScreen
from tui.screens.notes import NotesScreen
from tui.screens.overview import OverviewScreen
from tui.screens.readiness import ReadinessScreen
from tui.screens.reading import ReadingScreen
from tui.screens.run import RunScreen
from tui.screens.runs import RunsScreen


def test_no_key_means_two_things_in_one_place() -> None:
    for where in ("overview", "readiness", "launch", "run", "runs"):
        keys = [key for entry in (*keys_of("everywhere"), *keys_of(where)) for key in entry.keys.split(",")]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    "screen",
    [
        OverviewScreen,
        ReadinessScreen,
        LaunchScreen,
        RunScreen,
        RunsScreen,
        LogsScreen,
        NotesScreen,
        CompareScreen,
        Confirm,
        ReadingScreen,
        ConsoleApp,
    ],
)
def test_bindings_are_the_table_and_nothing_else(screen: type) -> None:
    where = {Confirm: "question", ReadingScreen: "reading"}.get(screen) or getattr(screen, "HERE", "everywhere")
    bindings = [binding for binding in vars(screen)["BINDINGS"] if isinstance(binding, Binding)]
    assert [(b.key, b.action, b.description) for b in bindings] == [(k.keys, k.action, k.label) for k in keys_of(where)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_help_lists_every_key(make_app: MakeApp, size: tuple[int, int]) -> None:
    from tui.screens.help import help_text

    words = help_text().plain
    for key in KEYS:
        if key.where != "runs":
            assert key_label(key.keys) in words and key.help in words
    async with make_app().run_test(size=size) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("question_mark")
        await until_seen(pilot, "Help", "launch the pilot, after one confirmation")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverviewScreen), "Overview")


@pytest.mark.parametrize(("opening", "title"), [("question_mark", "Help"), ("v", "Details"), ("V", "vLLM servers")])
async def test_what_is_opened_to_read_says_how_to_scroll_and_closes_by_every_key_that_it_names(
    container: FakeContainer, make_app: MakeApp, opening: str, title: str
) -> None:
    write_run(container.root, "run-a", "failed")
    app = make_app(run_id="run-a")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✗ failed")
        await pilot.press("1" if opening == "V" else "4")
        await until_seen(pilot, "vLLM servers" if opening == "V" else "Stages")
        below = app.screen
        for closing in ("escape", "q", opening):
            await pilot.press(opening)
            await until_seen(pilot, f"─ {title} ─", f"Esc q {key_label(opening)} close it · ↑ ↓ PgUp PgDn scroll")
            await pilot.press(closing)
            await until(pilot, lambda: app.screen is below, f"{closing} to close it")


async def test_the_help_scrolls_by_the_keys_that_it_names(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("question_mark")
        await until_seen(pilot, "Help")
        page = app.screen.query_one("#help")
        for keys, row in ((("down", "down", "up"), 1), (("home",), 0), (("pagedown",), page.size.height), (("g",), 0)):
            await pilot.press(*keys)
            await until(pilot, lambda row=row: page.scroll_offset.y == row, f"{keys} to scroll to row {row}")  # type: ignore[misc]
        await pilot.press("end")
        await until_seen(pilot, "A box that is dim", "closed.")


async def test_help_begins_with_the_screen_it_was_opened_on_and_folds_beside_the_key(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("4", "question_mark")
        screen = await until_seen(pilot, "Help", "stop the run: now, or after the next checkpoint")
        assert "the machine: link, GPUs" not in screen
        await pilot.press("escape", "1", "question_mark")
        screen = await until_seen(pilot, "Help", "NOTES.md of the run and of the")
        [line] = [line for line in screen.splitlines() if "workspace" in line and "every run" not in line]
        assert line.index("workspace") == next(x for x in screen.splitlines() if "what was learnt" in x).index("what")


@pytest.mark.parametrize("place", ["1", "2", "3", "4", "5", "6", "7"])
async def test_help_and_the_way_out_are_in_sight_on_every_screen(container: FakeContainer, make_app: MakeApp, place: str) -> None:
    write_run(container.root, "run-a", "failed")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press(place, "escape" if place in "37" else "f15", place)
        await until_seen(pilot, "? Help", "q Quit")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_every_screen_is_a_key_away_and_back(container: FakeContainer, make_app: MakeApp, size: tuple[int, int]) -> None:
    write_run(container.root, "run-a")
    async with make_app().run_test(size=size) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("5")
        await until_seen(pilot, "run-a", "Runs")
        assert isinstance(pilot.app.screen, RunsScreen)
        await pilot.press("enter")
        await until_seen(pilot, "Stages")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        await pilot.press("tab", "shift+tab", "4")
        await until_seen(pilot, "Stages")
        await pilot.press("1")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverviewScreen), "Overview")
        assert len(pilot.app.screen_stack) == 1


async def test_leaving_asks_and_says_that_runs_go_on(container: FakeContainer, make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("q")
        await until_seen(pilot, "Runs go on in the container; reopen the console to find them.")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen), "the dialog to close")
        await pilot.press("q")
        await until_seen(pilot, "Runs go on")
        await pilot.press("q")
        await until(pilot, lambda: app._exit, "the end")
    assert container.closed == 1


def written(folder: Path) -> str:
    """The one picture in a folder."""
    [picture] = folder.glob("eagle3-overview-*.svg")
    return picture.read_text()


async def test_the_screen_is_written_as_a_picture(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with make_app().run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("e")
        await until_seen(pilot, "Wrote")
    assert "<svg" in written(tmp_path)


async def test_the_palette_offers_the_table(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("ctrl+p")
        await until_seen(pilot, "Export", "write the screen to an SVG file, and its data beside it")
        await pilot.press(*"pilot")
        await until_seen(pilot, "Pilot", "launch the pilot, after one confirmation")
        await until(pilot, lambda: "write the screen to an SVG file" not in seen(app), "the search")
        await pilot.press("enter")
        await until_seen(pilot, "Launch the pilot?")


async def test_without_colour_every_state_is_still_a_word(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    write_run(container.root, "run-a", "failed")
    async with make_app().run_test(size=(80, 24)) as pilot:
        assert pilot.app.no_color
        await until_seen(pilot, "✗ failed", "● healthy", "✗ down")


async def test_nothing_moves_for_show(make_app: MakeApp) -> None:
    assert make_app().animation_level == "none"


async def test_an_unknown_host_key_is_shown_and_refused_unless_trusted(container: FakeContainer, make_app: MakeApp) -> None:
    answers: list[object] = []

    class Asking(FakeContainer):
        """Asks as a login would."""

        ask = Ask()

        async def open(self, *, persist: bool = False) -> None:
            assert self.ask.host_key is not None and self.ask.secret is not None
            question = HostKeyQuestion("box [/x]", "box", "ssh-ed25519", "SHA256:abc")
            answers.append(await self.ask.host_key(question))
            answers.append(await self.ask.host_key(question))
            answers.append(await self.ask.secret(SecretQuestion("box", "Password")))
            await super().open(persist=persist)

    asking = Asking(container.root)

    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        asking.ask = ask
        return asking(on_link, ask, workspace)

    app = ConsoleApp(connect, host="box", poll_s=0.05)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "SHA256:abc", "box [/x]", "Trust it")
        await pilot.press("enter")
        await until(pilot, lambda: answers == [False], "the refusal")
        await until_seen(pilot, "SHA256:abc")
        await pilot.press("y")
        await until_seen(pilot, "box asks: Password")
        await pilot.press(*"hunter2")
        assert "hunter2" not in seen(app)
        await pilot.press("enter")
        await until_seen(pilot, "no GPU")
    assert answers == [False, True, "hunter2"]


async def test_an_error_of_our_own_is_told_and_ends_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("nobody expected this")

    container.probe = broken  # type: ignore[method-assign,assignment]
    async with make_app().run_test(size=(120, 40), notifications=True) as pilot:
        await until_seen(pilot, "ZeroDivisionError: nobody expected this")
        await asyncio.sleep(0)
        await pilot.press("3")
        await until_seen(pilot, "New run")


async def test_a_click_on_a_tab_goes_there(make_app: MakeApp) -> None:
    from tui.widgets.titlebar import TitleBar

    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no GPU")
        column = seen(pilot.app).index("3 Launch")  # type: ignore[arg-type]
        await pilot.click(TitleBar, offset=(column + 3, 0))
        await until_seen(pilot, "New run")
        await pilot.click(TitleBar, offset=(60, 0))
        await until_seen(pilot, "New run")
