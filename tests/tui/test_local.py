"""The console through the real link: ``--local``, the real helper, runs that a worker process writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.written import written_run
from tui.app import ConsoleApp
from tui.catalog import Catalog
from tui.connect import connector
from tui.state import LIVE_STATES

FAKE_WORKER = Path(__file__).parent / "support" / "fake_worker.py"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace; what still runs in it at the end of the test is told to finish."""
    folder = tmp_path / "eagle3"
    folder.mkdir()
    yield folder
    (folder / "hold").unlink(missing_ok=True)


def console(workspace: Path, catalog: Path, **options: str) -> ConsoleApp:
    return ConsoleApp(
        connector("", local=True, python=sys.executable),
        host="this machine",
        workspace=str(workspace),
        worker_python=str(FAKE_WORKER),
        catalog=Catalog(catalog),
        poll_s=0.5,
        **options,
    )


async def test_a_run_directory_is_read_through_the_real_link(workspace: Path, tmp_path: Path) -> None:
    run_id = written_run(workspace)
    app = console(workspace, tmp_path / "catalog.sqlite")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, run_id, "✓ finished", "● up since")
        await pilot.press("enter")
        screen = await until_seen(pilot, "Verdict", "The draft learned", "[/red] last words", "served 1.17")
        assert "simulated 1.29" in screen
        await until(pilot, lambda: "⠤" in seen(app), "the plots")
        app.export(tmp_path / "run.svg")
    ElementTree.parse(tmp_path / "run.svg")


async def test_the_pilot_from_p_to_the_verdict(workspace: Path, tmp_path: Path) -> None:
    app = console(workspace, tmp_path / "catalog.sqlite")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since", "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "✗ not ready")  # a stand-in for a worker's Python has no packages
        await pilot.press("y")
        await until_seen(pilot, "launch the pilot anyway?")
        await pilot.press("a")
        screen = await until_seen(pilot, "✓ finished", "The draft learned, but is not useful on this machine.", "✓ export")
        assert "[/red]" in screen and "[bold]" in screen  # the log, as text
        view = app.console_state.open_run
        assert view is not None and len(list(view.metrics.rows("train", "train"))) == 12
    assert len(list((workspace / "runs").iterdir())) == 1


async def test_a_run_is_stopped_found_again_and_resumed(workspace: Path, tmp_path: Path) -> None:
    (workspace / "hold").touch()
    app = console(workspace, tmp_path / "catalog.sqlite")
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● up since", "none yet")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?", "✗ not ready")  # a stand-in for a worker's Python has no packages
        await pilot.press("y")
        await until_seen(pilot, "launch the pilot anyway?")
        await pilot.press("a")
        await until_seen(pilot, "● train", "s Stop")
    # The console is gone; the run goes on. Another one finds it.
    again = console(workspace, tmp_path / "catalog.sqlite")
    async with again.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since", "● running")
        await pilot.press("enter")
        await until_seen(pilot, "● train", "s Stop")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?")
        await pilot.press("n")
        await until_seen(pilot, "■ stopped", "r Resume")
        (workspace / "hold").unlink()
        await pilot.press("r")
        await until_seen(pilot, "Resume the run?")
        await pilot.press("y")
        await until_seen(pilot, "✓ finished", "Verdict")
        view = again.console_state.open_run
        assert view is not None and view.summary is not None and view.summary.attempt == 2
        assert view.state not in LIVE_STATES
