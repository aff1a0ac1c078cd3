"""Looking at the plots of a run: zoom, pan, cursor, axes, figures; gaps and spikes; what is not there is said."""

from __future__ import annotations

import re

from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, event, lines, metric, write_run
from tui.plotting.figures import FIGURES, Line, marks_of, reading
from tui.plotting.machine import MACHINE_FIGURES
from tui.plotting.rows import Metrics
from tui.themes.palette import ACCENT
from tui.widgets.log import RunLog
from tui.widgets.plot import MetricPlot


async def test_zoom_pan_and_cursor_read_what_was_measured(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=2)
    (run / "metrics.jsonl").write_text("")
    lines(run / "metrics.jsonl", [metric(step, loss=float(step)) for step in range(1, 401)])
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running", "Loss ━")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.builds == 1, "the plot")
        await pilot.press("plus", "plus")
        await until_seen(pilot, "zoomed", "300", "350", "400")
        await pilot.press("less_than_sign")
        await until_seen(pilot, "zoomed, stays put")
        await pilot.press("0", "left_square_bracket")
        screen = await until_seen(pilot, "step 400: train 400.00")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "step 400: train" not in seen(pilot.app), "the cursor to move")  # type: ignore[arg-type]
        screen = seen(pilot.app)  # type: ignore[arg-type]
        found = re.search(r"step (\d+): train (\d+)", screen)
        assert found is not None and found.group(1) == found.group(2), "the reading is of a real point"
        await pilot.press("c")
        await until_seen(pilot, "last point")


async def test_every_figure_axis_scale_and_smoothing_is_drawn(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=2)
    (run / "metrics.jsonl").write_text("")
    lines(
        run / "metrics.jsonl",
        [metric(step, lr=1e-3 / step, grad_norm=1.0, tok_s=300.0, loss_pos=[3.0, 2.0]) for step in range(1, 90)],
    )
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running", "Loss")
        titles = [figure.title for figure in FIGURES.values()] + [machine.figure.title for machine in MACHINE_FIGURES.values()]
        for title in titles[2:] + titles[:2]:
            await pilot.press("m")
            await until_seen(pilot, title)
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        for key, words in (("l", "log"), ("o", "smooth 0.6"), ("k", "clipped"), ("t", ""), ("b", "")):
            before = loss.builds
            await pilot.press(key)
            await until(pilot, lambda before=before: loss.builds > before, "the plot")  # type: ignore[misc]
            assert words in seen(pilot.app)  # type: ignore[arg-type]
        await pilot.press("h")
        await until_seen(pilot, "last hour")


async def test_a_logarithm_of_nothing_positive_is_refused_in_words(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=2)
    (run / "metrics.jsonl").write_text("")
    lines(run / "metrics.jsonl", [metric(step, loss=0.0, acc_pos=[0.0, 0.0]) for step in range(1, 9)])
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running", "Loss ━0.00")
        await pilot.press("l")
        await until_seen(pilot, "Nothing of it is positive")


async def test_a_new_look_is_shown_at_once_though_no_point_came(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 61")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.builds == 1, "the plot")
        await pilot.press("plus")
        await until(pilot, lambda: loss.builds == 2, "the zoomed plot")


async def test_a_run_that_comes_back_to_the_front_shows_what_stood_there_and_builds_it_anew_in_the_next_turn(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    run = write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running", "step 61")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.builds == 1, "the plot")
        await pilot.press("1")
        await until(pilot, lambda: pilot.app.screen.HERE == "overview", "the overview")  # type: ignore[attr-defined]
        lines(run / "metrics.jsonl", [metric(step) for step in range(61, 90)])
        clock.now += 10
        await pilot.press("4")
        await until_seen(pilot, "step 61")
        await pilot.pause()
        assert loss.builds == 1, "the key waited for a plot"
        clock.now += 1
        await until(pilot, lambda: loss.builds == 2, "the plot, anew")


async def test_the_bar_of_the_log_is_told_of_every_line(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 61")
        log = pilot.app.screen.query_one(RunLog)
        await until(pilot, lambda: log.show_vertical_scrollbar, "more lines than rows")
        bar = log.vertical_scrollbar
        assert (bar.window_virtual_size, bar.window_size) == (log.virtual_size.height, log.container_size.height)
        assert bar.position == log.max_scroll_y


def metrics_of(count: int) -> Metrics:
    metrics = Metrics()
    from eagle3.core.records import MetricRow

    metrics.take([MetricRow.model_validate(metric(step)) for step in range(count)])
    return metrics


def test_checkpoints_later_attempts_and_guards_are_marked_where_training_was() -> None:
    from eagle3.core.records import Event

    metrics = metrics_of(100)
    kinds = [("checkpoint", 1), ("attempt_started", 1), ("attempt_started", 2), ("guard-nan", 1), ("stage", 1)]
    events = [
        Event.model_validate(event(kind, "x", t=NOW - 300 + 10 * n, attempt=attempt)) for n, (kind, attempt) in enumerate(kinds)
    ]
    assert [mark.x for mark in marks_of(events, metrics, "step")] == [0, 20, 30]
    assert [mark.x for mark in marks_of(events, metrics, "time")] == [0, 20, 30]


def test_a_reading_names_every_line_at_one_real_place() -> None:
    found = FIGURES["acceptance"].lines(metrics_of(10), "step")
    words = reading(found, 4.4, "step")
    assert words.startswith("step 4: position 1 0.0") and "position 3" in words
    assert reading([], 4.4, "step") == ""


def test_a_reading_in_a_narrow_frame_keeps_the_figures_and_drops_the_names() -> None:
    lines = [Line(((692.0, 0.6),), ACCENT, name="position 1"), Line(((692.0, 0.3),), ACCENT, name="position 2")]
    held_out = [Line(((692.0, 0.5),), ACCENT, dots=True, name="position 1 held-out")]
    assert reading(lines, 690, "step", 21) == "step 692: 0.60 0.30"
    assert reading([*lines, *held_out], 690, "step", 26) == "step 692: 0.60 0.30 ●0.50"
    assert reading([*lines, *held_out], 690, "step", 21) == "692: 0.60 0.30 ●0.50"
    assert reading([*lines, *held_out], 690, "step", 15) == "692: 0.60 0.30"
