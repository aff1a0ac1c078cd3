"""Every screen, cell by cell, against what stands in ``snapshots/``. Renewed by

    UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/tui/test_snapshots.py

and then read in the diff: what changed there is what an operator will see.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer, eight_gpus
from tests.tui.support.driving import until_seen
from tests.tui.support.folders import write_run
from tests.tui.support.snapshot import snapshot

FOLDER = Path(__file__).parent / "snapshots"
LIMIT_S = 20.0
SCREENS = {
    "overview": ("1", "vLLM servers"), "run": ("4", "Stages"), "runs": ("5", "live first"), "logs": ("6", "run.log"),
    "notes": ("7", "Notes of"), "launch": ("3", "New run"), "readiness": ("2", "Readiness"),
}  # fmt: skip
"""Screen -> its key and a word on it."""


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are told in the operator's zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_every_screen_is_as_it_was(
    container: FakeContainer, make_app: MakeApp, utc: None, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], colour: bool
) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    container.gpu = eight_gpus()
    write_run(container.root, "pilot-a", run_dir="/home/op/eagle3/runs/pilot-a")
    write_run(container.root, "pilot-b", "failed", run_dir="/home/op/eagle3/runs/pilot-b")
    differing = {}
    async with make_app(run_id="pilot-a").run_test(size=size) as pilot:
        await until_seen(pilot, "pilot-a", "● train", "last point" if size[0] > 80 else "⠤")
        for name, (key, word) in SCREENS.items():
            await pilot.press("escape", key)
            await until_seen(pilot, word)
            path = FOLDER / f"{name}-{size[0]}x{size[1]}{'' if colour else '-plain'}.txt"
            wanted = path.read_text() if path.exists() else ""
            deadline, same, found, before = time.monotonic() + LIMIT_S, 0, "", ""
            updating = os.environ.get("UPDATE_SNAPSHOTS") == "1"
            while time.monotonic() < deadline and (same < 8 if updating else found != wanted):
                await pilot.pause(0.1)
                before, found = found, snapshot(pilot.app)  # type: ignore[arg-type]
                same = same + 1 if found == before else 0
            if updating:
                path.parent.mkdir(exist_ok=True)
                path.write_text(found)
            elif found != wanted:
                differing[path.name] = found
    assert not differing, "\n".join([f"other than in {FOLDER}: {', '.join(differing)}", *differing.values()])
