"""The console through the real link: ``--local``, the real helper, runs that a worker process writes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eagle3.runner import rundir
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import metric, result
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


def written_run(workspace: Path) -> str:
    """A finished run as the runner's own writer leaves it."""
    run = rundir.run_path(str(workspace), "pilot-written")
    for folder in (run / "attempts" / "1", run / "stages"):
        folder.mkdir(parents=True)
    now = time.time()
    rundir.write_json(run / "launch.json", {"v": 1, "label": {"size": "pilot", "target": "smollm2-135m", "machine": "cpu"}})
    rundir.write_json(run / "attempts/1/starting.json", {"v": 1, "attempt": 1, "t": now - 60})
    rundir.write_json(run / "attempts/1/started.json", {"v": 1, "attempt": 1, "t": now - 59, "pid": 1, "actor": "tests"})
    rundir.write_json(run / "attempts/1/exit.json", {"v": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "t": now})
    rundir.write_json(
        run / "progress.json", {"v": 1, "attempt": 1, "stage": "export", "done": 1, "total": 1, "unit": "files", "t": now}
    )
    rundir.write_json(run / "result.json", result("pilot-written"))
    for step in range(1, 40):
        rundir.append_line(run / "metrics.jsonl", metric(step))
    (run / "attempts/1/run.log").write_text("step 1\n[/red] last words\n")
    return "pilot-written"


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
        await pilot.press("enter")
        await until_seen(pilot, "✓ finished", "Verdict")
        view = again.console_state.open_run
        assert view is not None and view.summary is not None and view.summary.attempt == 2
        assert view.state not in LIVE_STATES
