"""Runs and their plots outlive the container: what the catalogue keeps of them, bounded, and how it is shown."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from eagle3.core.records import Event, MetricRow, Result, RunSummary
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, metric, write_run
from tui import catalog as catalog_module
from tui.catalog import KEPT_S, MIGRATIONS, Catalog, summaries
from tui.keeping import MOST_BYTES, pack, thinned, unpack


def row(step: int, loss: float | None = 1.0, split: str = "train") -> MetricRow:
    return MetricRow(stage="train", split=split, step=step, loss=loss, t=float(step), seq=step)


def test_a_thinned_picture_keeps_the_spikes_and_both_ends() -> None:
    rows = [row(step, 1.0 + step % 7 / 10) for step in range(50_000)]
    rows[31_234] = row(31_234, 99.0)
    rows[7] = row(7, 0.01)
    kept = thinned(rows, 600)
    assert len(kept) <= 600 and [kept[0].step, kept[-1].step] == [0, 49_999]
    assert {7, 31_234} <= {one.step for one in kept}
    assert [one.step for one in kept] == sorted(one.step for one in kept)


def test_a_stretch_without_any_loss_stays_in_sight() -> None:
    kept = thinned([row(step, None) for step in range(5000)], 100)
    assert 2 < len(kept) <= 100


def test_a_picture_comes_back_as_it_went_and_is_never_larger_than_its_bound() -> None:
    events = [Event(kind="stage", text="prepare done", t=NOW)]
    result = Result.model_validate({"run_id": "a", "verdict": "learns", "verdict_text": "It learned."})
    rows = [MetricRow.model_validate(metric(step)) for step in range(1, 200)]
    kept = unpack(pack(rows, events, result))
    assert kept is not None
    assert (kept.rows, kept.events, kept.result) == (rows, events, result)
    dice = random.Random(7)
    wild = [
        MetricRow(stage="train", step=n, loss=dice.random(), acc_pos=[dice.random() for _ in range(3)], lr=dice.random())
        for n in range(60_000)
    ]
    packed = pack(wild, [], None)
    assert len(packed) <= MOST_BYTES
    back = unpack(packed)
    assert back is not None and len(back.rows) > 100


def test_a_loss_that_was_no_number_does_not_spoil_the_picture() -> None:
    kept = unpack(pack([row(1), row(2, math.nan), row(3)], [], None))
    assert kept is not None and [one.step for one in kept.rows] == [1, 2, 3]


@pytest.mark.parametrize("data", [b"", b"nonsense", pack([], [], None)[:-4]])
def test_a_picture_that_cannot_be_understood_is_none(data: bytes) -> None:
    assert unpack(data) is None


def test_old_and_too_many_pictures_go_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "PICTURES_BYTES", 3000)
    catalog = Catalog(tmp_path / "c.sqlite")
    catalog.save("box", "w", [RunSummary(run_id="run-0", state="finished")], 0.0)
    for number in range(5):
        catalog.save_picture("box", "w", f"run-{number}", b"x" * 1000, 100.0 + number)
    assert [n for n in range(5) if catalog.picture("box", "w", f"run-{n}")] == [2, 3, 4]
    assert catalog.picture("box", "w", "run-4") == (b"x" * 1000, 104.0)
    catalog.save_picture("box", "w", "later", b"y", 103.5 + KEPT_S)
    assert catalog.picture("box", "w", "run-3") is None and catalog.picture("box", "w", "run-4") is not None
    assert catalog.runs("box", "w") == [], "a run that nobody saw for a year goes too"
    assert catalog.problem == ""
    catalog.close()


def test_a_file_of_the_version_before_keeps_its_runs_and_takes_pictures(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "c.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(f"PRAGMA journal_mode=WAL; {MIGRATIONS[0]} {MIGRATIONS[1]} PRAGMA user_version = 2;")
        db.execute("INSERT INTO runs VALUES ('box', 'w', 'a', ?, 5.0)", (RunSummary(run_id="a").model_dump_json(),))
    first, second = Catalog(path), Catalog(path)  # two consoles at once, on a file that both have to bring forward
    first.save_picture("box", "w", "a", b"1", 6.0)
    second.save_picture("box", "w", "b", b"2", 7.0)
    assert [catalog.picture("box", "w", "a") for catalog in (first, second)] == [(b"1", 6.0)] * 2
    assert [run.run_id for run, _ in summaries(second.runs("box", "w"))] == ["a"] and first.problem == second.problem == ""
    first.close()
    second.close()


async def test_the_plots_of_a_run_open_when_the_container_is_gone(
    container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "catalog.sqlite"
    write_run(container.root, "pilot-kept", "finished", steps=180)
    async with make_app(catalog=Catalog(path), run_id="pilot-kept").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✓ finished", "Verdict", "● up since")
    container.down = "The host is gone."
    clock.now += 3 * 3600
    app = make_app(catalog=Catalog(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "pilot-kept", "The host is gone.")
        await pilot.press("enter")
        screen = await until_seen(pilot, "as of 3 h ago", "Verdict", "simulated 1.29")
        await until(pilot, lambda: "⠤" in seen(app) or "⡀" in seen(app) or "⣀" in seen(app), "the plots")
        assert "4.2" in screen, "the last loss stands in the title of its plot"
        view = app.console_state.open_run
        assert view is not None and len(view.metrics.rows("train", "train")) == 180 and not view.heard
        container.down = ""
        await until(pilot, lambda: view.heard, "the container's own word")
        assert "as of" not in await until_seen(pilot, "Verdict")


async def test_a_run_that_another_container_no_longer_has_is_gone_and_can_still_be_opened(
    container: FakeContainer, make_app: MakeApp, tmp_path: Path
) -> None:
    import shutil

    path = tmp_path / "catalog.sqlite"
    write_run(container.root, "pilot-old", "finished", steps=180)
    async with make_app(catalog=Catalog(path), run_id="pilot-old").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✓ finished", "Verdict")
    shutil.rmtree(container.root / "pilot-old")
    write_run(container.root, "pilot-new")
    app = make_app(catalog=Catalog(path))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until_seen(pilot, "pilot-new")
        assert "pilot-old" not in screen
        await pilot.press("5")
        await until_seen(pilot, "– gone", "pilot-old", "● running")
        await pilot.press("down", "enter")
        await until_seen(pilot, "There is no run called 'pilot-old'", "Verdict", "kept by this console")
