"""Several hosts in one console: each with its own link, one of them in front, and no host's trouble another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import Input

from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer, eight_gpus
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tests.tui.test_settings import painted
from tui.app import ConsoleApp
from tui.catalog import Catalog
from tui.fleet import BEHIND_POLLS, Place
from tui.screens.hosts import Chooser, HostChoice
from tui.settings import Settings
from tui.widgets.hosts import HostList

SIZES = [(80, 24), (120, 40)]


@pytest.fixture
def other(tmp_path: Path) -> FakeContainer:
    root = tmp_path / "other-runs"
    root.mkdir()
    return FakeContainer(root)


@pytest.fixture
def make_pair(container: FakeContainer, other: FakeContainer, make_app: MakeApp) -> Callable[..., ConsoleApp]:
    def make(**options: object) -> ConsoleApp:
        return make_app(others=[Place("spare", other)], **options)

    return make


MakePair = Callable[..., ConsoleApp]


@pytest.mark.parametrize("size", SIZES)
async def test_every_host_has_a_group_and_the_one_in_front_its_panels(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair, size: tuple[int, int]
) -> None:
    other.gpu = eight_gpus()
    write_run(container.root, "pilot-here")
    write_run(other.root, "pilot-there")
    async with make_pair().run_test(size=size) as pilot:
        screen = await until_seen(pilot, "Hosts", "box", "spare", "8 GPUs 42%" if size[0] == 80 else "8 × H200", "pilot-here")
        assert screen.count("● up since") == 3  # in the title, and in both groups
        assert "no GPU" in screen and "▲ " in screen  # of the disk that is nearly full
        await pilot.press("down")
        screen = await until_seen(pilot, "pilot-there", "driver 570.124")
        assert "spare  ● up since" in screen.splitlines()[0]


async def test_a_group_opens_and_folds_by_key_and_by_mouse(other: FakeContainer, make_pair: MakePair) -> None:
    other.gpu = eight_gpus()
    async with make_pair().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "▸ box", "▸ spare", "● up since")
        await pilot.press("space")
        await until_seen(pilot, "▾ box", "GPUs   none")
        await pilot.press("space")
        await until_seen(pilot, "▸ box")
        row = next(n for n, line in enumerate(seen(pilot.app).splitlines()) if "▸ spare" in line)  # type: ignore[arg-type]
        await pilot.click(offset=(20, row))
        await until_seen(pilot, "driver 570.124")  # it is in front
        await pilot.click(offset=(2, row))
        await until_seen(pilot, "▾ spare", "8 × H200")
        await pilot.press("F")
        hosts = pilot.app.screen.query_one(HostList)
        await until(pilot, lambda: {str(option.prompt)[0] for option in hosts.options} == {"▾"}, "both groups to be open")


async def test_a_host_that_is_gone_leaves_the_other_as_it_was(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair, clock: Clock
) -> None:
    write_run(other.root, "pilot-there")
    async with make_pair().run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "box", "spare")
        await until(pilot, lambda: seen(pilot.app).count("● up since") == 3, "both links")  # type: ignore[arg-type]
        container.down = "The host box is gone."
        screen = await until_seen(pilot, "✗ down since", "The host box is gone.")
        assert screen.count("● up since") == 1
        clock.now += 65
        await pilot.press("down")
        screen = await until_seen(pilot, "pilot-there", "● running", "The host box is gone.")
        assert "● up since" in screen.splitlines()[0] and "Down for" not in screen


async def test_what_is_asked_goes_to_the_host_in_front_and_to_no_other(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair
) -> None:
    write_run(container.root, "same-name")
    write_run(other.root, "same-name")
    async with make_pair().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(pilot.app.members["spare"].console.runs) == 1, "the other's runs")  # type: ignore[attr-defined]
        await pilot.press("ctrl+n")
        await until_seen(pilot, "same-name", "spare  ● up since")
        await pilot.press("4")
        await until_seen(pilot, "Stages", "s Stop", "spare")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?", "spare")
        await pilot.press("n")
        await until_seen(pilot, "■ stopped")
        assert (other.stops, container.stops) == ([("same-name", "now")], [])


async def test_every_host_keeps_its_own_screens_and_open_run(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair
) -> None:
    write_run(container.root, "run-here")
    write_run(other.root, "run-there", "finished", steps=180)
    app = make_pair()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-here")
        await pilot.press("4")
        await until_seen(pilot, "run-here", "step 61")
        await pilot.press("ctrl+n")
        await until_seen(pilot, "run-there", "Verdict")
        assert app.members["box"].console.open_run.run_id == "run-here"  # type: ignore[union-attr]
        await pilot.press("ctrl+n")
        await until_seen(pilot, "run-here", "step 61")


async def test_a_host_behind_is_asked_less_often_and_is_not_stale_for_it(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair
) -> None:
    app = make_pair(poll_s=0.2)
    async with app.run_test(size=(80, 24)) as pilot:
        asked = {"box": 0, "spare": 0}

        def counted(name: str, fake: FakeContainer) -> None:
            plain = fake.probe

            async def probe() -> object:
                asked[name] += 1
                return await plain()

            fake.probe = probe  # type: ignore[method-assign, assignment]

        await until(pilot, lambda: all(m.console.probe.at for m in app.members.values()), "both")
        counted("box", container)
        counted("spare", other)
        await until(pilot, lambda: asked["spare"] >= 1 and asked["box"] >= 4, "several polls")
        assert asked["box"] >= 2 * asked["spare"]
        assert app.members["spare"].console.poll_s == BEHIND_POLLS * 0.2
        assert not app.members["spare"].console.stale(NOW, NOW + 3)


async def test_an_answer_that_comes_late_never_acts_on_the_host_in_front(
    container: FakeContainer, other: FakeContainer, make_pair: MakePair
) -> None:
    """A launch is confirmed on one host, and the operator goes to another before its check has ended."""
    import asyncio

    container.held = asyncio.Event()
    app = make_pair()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until_seen(pilot, "● up since")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "box")
        await pilot.press("y")
        await until(pilot, lambda: bool(app.members["box"].console.launching), "the launch to wait")
        await pilot.press("ctrl+n")
        await until_seen(pilot, "spare  ● up since")
        container.held.set()
        await until(pilot, lambda: bool(container.launches) or bool(app.members["box"].waiting), "the check's end")
        assert other.launches == []
        if app.members["box"].waiting:  # not ready: the second question waits for its host
            assert "launch the pilot anyway?" not in seen(app)
            await pilot.press("ctrl+n")
            await until_seen(pilot, "launch the pilot anyway?")
            await pilot.press("a")
        await until(pilot, lambda: len(container.launches) == 1, "the launch on its own host")
        assert other.launches == []


async def test_h_opens_one_host_more(container: FakeContainer, other: FakeContainer, make_app: MakeApp) -> None:
    write_run(other.root, "pilot-there")
    app = make_app(dial=lambda name: other, hosts=lambda: ["box", "gpu-9"])
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since")
        await pilot.press("H")
        screen = await until_seen(pilot, "Hosts", "gpu-9", "box  ● up")
        assert screen.count("gpu-9") == 1
        await pilot.press("down", "enter")
        await until_seen(pilot, "pilot-there", "gpu-9  ● up since")
        await pilot.press("H")
        await until_seen(pilot, "or another, as for ssh")
        await pilot.press("tab", *"box", "enter")
        await until(pilot, lambda: app.front.name == "box", "the first host")
        assert list(app.members) == ["box", "gpu-9"]
        assert isinstance(app.screen.query_one(HostList), HostList)


async def test_hosts_looked_at_before_are_known_the_last_one_first(tmp_path: Path, make_pair: MakePair, clock: Clock) -> None:
    path = tmp_path / "catalog.sqlite"
    async with make_pair(catalog=Catalog(path)).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: seen(pilot.app).count("● up since") == 3, "both links")  # type: ignore[arg-type]
    catalog = Catalog(path)
    assert sorted(catalog.hosts()) == ["box", "spare"]
    catalog.look("older", "w", 1.0)
    assert catalog.hosts()[-1] == "older"
    catalog.close()


async def test_the_groups_are_only_ascii_where_that_is_asked_for(other: FakeContainer, make_pair: MakePair) -> None:
    other.gpu = eight_gpus()
    app = make_pair(settings=Settings(ascii=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "8 x H200" in painted(app), "the group")
        screen = painted(app)
        assert screen.isascii() and "v box" in screen and "v spare" in screen
        assert "?" not in screen.replace("? Help", "")


@pytest.mark.parametrize("reduced", [True, False])
async def test_with_reduced_motion_no_cursor_blinks_and_nothing_moves(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, container: FakeContainer, reduced: bool
) -> None:
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "full")
    write_run(container.root, "run-a")
    app = make_app(settings=Settings(reduced_motion=reduced))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("5", "slash")
        await until(pilot, lambda: isinstance(app.focused, Input), "the field")
        assert isinstance(app.focused, Input) and app.focused.cursor_blink is not reduced
        assert (app.animation_level == "none") is reduced


async def test_a_console_without_a_host_asks_which() -> None:
    chooser = Chooser([HostChoice("gpu-1", "looked at before"), HostChoice("gpu-2"), HostChoice("[bold]")], "paper", False)
    async with chooser.run_test(size=(80, 24)) as pilot:
        await pilot.press("space", "down", "space", "enter")
    assert chooser.return_value == ["gpu-1", "gpu-2"]
    again = Chooser([], "calm", True)
    async with again.run_test(size=(80, 24)) as pilot:
        await pilot.press(*"box", "enter")
    assert again.return_value == ["box"]
    left = Chooser([HostChoice("gpu-1")], "calm", False)
    async with left.run_test(size=(80, 24)) as pilot:
        await pilot.press("escape")
    assert not left.return_value
