"""The machine beside the training: GPU memory, utilisation and free disk on the training's axis, as far as watched."""

from __future__ import annotations

from eagle3.core.records import Event, MetricRow, Probe
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import DISKS, GIB, FakeContainer, eight_gpus
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui.history import TRAIL_KEPT, History, Trail
from tui.plotting.figures import FIGURES, marks_of
from tui.plotting.machine import MACHINE_FIGURES
from tui.plotting.rows import Metrics
from tui.widgets.log import RunLog
from tui.widgets.plot import MetricPlot


def metrics(steps: int = 10) -> Metrics:
    """One row a second, from t = 100 on."""
    found = Metrics()
    found.take([MetricRow(stage="train", split="train", step=step, seq=step, t=100.0 + step, loss=1.0) for step in range(steps)])
    return found


def watched(times: list[float]) -> History:
    history = History()
    for t in times:
        history.take(Probe(now=t, gpu=eight_gpus(), disks=DISKS))
    return history


def test_samples_stand_at_the_step_or_the_time_of_the_training_and_nowhere_else() -> None:
    history = watched([50.0, 101.5, 104.0, 300.0])
    memory = MACHINE_FIGURES["gpu_memory"].lines(history, metrics(), "step")
    assert len(memory) == 8 and memory[1].name == "GPU 1"
    assert memory[1].points == ((1.0, 20.0), (4.0, 20.0)), "17 + 3 GiB; before and after training there is no step"
    disk = MACHINE_FIGURES["disk_free"].lines(history, metrics(), "time")
    assert [x for x, _ in disk[0].points] == [1.5, 4.0, 200.0] and disk[0].points[0][1] == DISKS[0].free_bytes / GIB  # type: ignore
    assert MACHINE_FIGURES["gpu_work"].lines(history, Metrics(), "step") == []
    assert MACHINE_FIGURES["gpu_work"].since(history) == 50.0 and MACHINE_FIGURES["gpu_work"].since(History()) is None


def test_a_trail_of_weeks_stays_bounded_and_keeps_its_spike() -> None:
    trail = Trail()
    for k in range(100_000):
        trail.add(float(k), 1000.0 if k == 777 else float(k % 7))
    assert len(trail.samples) <= TRAIL_KEPT
    assert (777.0, 1000.0) in trail.samples and trail.samples[0][0] < 100 and trail.samples[-1][0] == 99_999
    assert [t for t, _ in trail.samples] == sorted(t for t, _ in trail.samples)
    trail.add(5.0, 1.0)
    assert trail.samples[-1][0] == 99_999, "a clock that was set back adds nothing"


def test_a_checkpoint_is_marked_at_its_own_step_and_attempts_and_guards_where_training_was() -> None:
    events = [
        Event(kind="checkpoint-saved", t=104.5, step=4),
        Event(kind="attempt_started", t=106.2, attempt=2),
        Event(kind="guard-gradient", t=108.0, level="warn"),
        Event(kind="stage", t=103.0),
    ]
    assert [mark.x for mark in marks_of(events, metrics(), "step")] == [4.0, 6.0, 8.0]
    assert [round(mark.x, 1) for mark in marks_of(events, metrics(), "time")] == [4.5, 6.2, 8.0]


async def test_m_comes_to_the_machine_and_says_since_when_it_was_watched(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    write_run(container.root, "run-a", steps=62)
    for figure in (container.root / "run-a" / "metrics.jsonl",):
        figure.write_text(figure.read_text().replace('"step": 62', '"step": 362').replace(f"{NOW - 300 + 62}", f"{NOW + 5}"))
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running", "step 61")
        await pilot.press(*"m" * (len(FIGURES) - 2))
        await until_seen(pilot, "Tokens per second", "no points yet")
        await pilot.press("m")
        await until_seen(pilot, "GPU memory, GiB", "no GPU was seen while training went on")
        await pilot.press("m", "m")
        await until_seen(pilot, "Disk free, GiB", "seen since")


async def test_arrows_are_the_logs_until_a_plot_has_the_focus(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", steps=62)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 61 loss", "simulated 1.20")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.everything is not None, "points")
        await pilot.press("up")
        await until_seen(pilot, "scrolled up")
        assert loss.reading == ""
        await pilot.press("z", "left", "left")
        await until(pilot, lambda: loss.reading.startswith("step 61"), "the cursor")
        await pilot.press("up")
        await until(pilot, lambda: pilot.app.screen._look.window is not None, "the zoom")  # type: ignore[attr-defined]
        await pilot.press("z")
        assert isinstance(pilot.app.focused, RunLog)


async def test_an_ended_run_without_points_says_that_it_left_none(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", "finished", steps=1)
    (run / "metrics.jsonl").write_text("")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "✓ finished", "it left no points")
        assert "no points yet" not in seen(pilot.app)  # type: ignore[arg-type]
        await pilot.press("plus")
        await until_seen(pilot, "There is nothing to look at")
