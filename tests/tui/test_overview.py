"""Overview: what the machine has, how old that is, and what is said when the link is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle3.core.records import GpuReport
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer, eight_gpus
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui.widgets.gpus import GpusPanel
from tui.widgets.runs_table import RunsTable

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_everything_is_on_one_screen(container: FakeContainer, make_app: MakeApp, size: tuple[int, int]) -> None:
    container.gpu = eight_gpus()
    write_run(container.root, "pilot-20261130-101500-ab12")
    write_run(container.root, "smoke-1", "failed")
    async with make_app().run_test(size=size) as pilot:
        screen = await until_seen(pilot, "pilot-20261130-101500-ab12", "8 × NVIDIA H200", "● up since")
        for text in ("122 / 141 GiB", "37.0 / 64.0 GiB", "only 1,200 files more", "● healthy", "2 running, 0 waiting", "✗ down"):
            assert text in screen
        for text in ("● running", "train", "34%", "2m26", "✗ failed", "box"):
            assert text in screen
        assert "p Pilot" in screen and "q Quit" in screen


async def test_that_there_is_no_gpu_is_said_plainly(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        assert "No NVIDIA driver was found." in await until_seen(pilot, "no GPU")


async def test_an_unknown_gpu_says_why(container: FakeContainer, make_app: MakeApp) -> None:
    container.gpu = GpuReport(status="unknown", text="NVML hung")
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "? unknown: NVML hung")


async def test_the_first_picture_comes_before_the_connection(container: FakeContainer, make_app: MakeApp) -> None:
    container.down = "The host does not answer."
    async with make_app().run_test(size=(80, 24)) as pilot:
        assert "Connecting" in seen(pilot.app) or "does not answer" in seen(pilot.app)  # type: ignore[arg-type]
        await until_seen(pilot, "asking…", "not known yet")


async def test_a_link_that_is_down_says_since_when_and_keeps_what_was_known(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no GPU", "● up since")
        container.down = "The host does not answer."
        screen = await until_seen(pilot, "✗ down since", "The host does not answer.")
        assert re.search(r"✗ down since \d\d:\d\d:\d\d", screen)
        assert "no GPU" in screen
        clock.now += 65
        await until_seen(pilot, "Down for 1 min 05 s")
        container.down = ""
        screen = await until_seen(pilot, "● up since")
        assert "Down for" not in screen


async def test_a_refusal_is_said_with_the_way_out(container: FakeContainer, make_app: MakeApp) -> None:
    container.refuse = "The host key has changed."
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✗ refused since", "The host key has changed.", "Ctrl+r tries again")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: container.reconnects == 1, "a new try")


async def test_what_is_older_than_three_polls_dims_and_says_so(container: FakeContainer, make_app: MakeApp, clock: Clock) -> None:
    write_run(container.root, "pilot-1")
    async with make_app(poll_s=5.0).run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "pilot-1", "no GPU")
        container.down = "The host does not answer."
        clock.now += 14
        pilot.app.present()  # type: ignore[attr-defined]
        assert "14 s ago" in await until_seen(pilot, "14 s ago")
        panel = pilot.app.screen.query_one(GpusPanel)
        assert not panel.has_class("stale")
        clock.now += 2
        pilot.app.present()  # type: ignore[attr-defined]
        await until_seen(pilot, "stale · 16 s ago")
        assert panel.has_class("stale")
        assert pilot.app.screen.query_one(RunsTable).has_class("stale")


async def test_runs_known_from_before_are_there_before_the_host_answers(
    container: FakeContainer, make_app: MakeApp, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tui.catalog import Catalog

    path = tmp_path_factory.mktemp("state") / "catalog.sqlite"
    write_run(container.root, "pilot-kept", "finished")
    async with make_app(catalog=Catalog(path)).run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "pilot-kept", "● up since")
    container.down = "The host is gone."
    async with make_app(catalog=Catalog(path)).run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "pilot-kept", "✓ finished", "The host is gone.")


async def test_a_damaged_catalog_is_told_and_nothing_else_happens(make_app: MakeApp, tmp_path: Path) -> None:
    from tui.catalog import Catalog

    path = tmp_path / "catalog.sqlite"
    path.write_bytes(b"no database at all" * 64)
    async with make_app(catalog=Catalog(path)).run_test(size=(120, 40), notifications=True) as pilot:
        await until_seen(pilot, "set aside", "no GPU")


async def test_the_cursor_stays_on_its_run_when_another_comes(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", created_at=NOW - 300)
    write_run(container.root, "run-b", created_at=NOW - 200)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a", "run-b")
        await pilot.press("down")
        table = pilot.app.screen.query_one(RunsTable)
        assert table.current() == "run-a"
        write_run(container.root, "run-c", created_at=NOW - 100)
        await until_seen(pilot, "run-c")
        assert table.current() == "run-a"


@pytest.mark.parametrize(("size", "gone"), [((40, 12), "Disks"), ((80, 14), "vLLM servers")])
async def test_on_a_small_screen_the_runs_stay_and_what_is_wrong_is_told_in_a_line(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int], gone: str
) -> None:
    for name in ("run-a", "run-b"):
        write_run(container.root, name)
    async with make_app().run_test(size=size) as pilot:
        screen = await until_seen(pilot, "● running       run-a", "● running       run-b", "▲ /data 9.0 GiB free")
        assert gone not in screen


async def test_enter_opens_the_run_under_the_cursor(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "Stages", "Log", "run-a")
