"""Run: a live run, a finished one, a failed one; what the far side writes is shown as text."""

from __future__ import annotations

import json

import pytest

from eagle3.core.records import Event, MetricRow, Pause, Progress, Result, RunSummary
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer, News
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, event, lines, metric, write_run
from tui.formats import STATE_WORDS
from tui.screens.details import details_text
from tui.screens.help import LEGEND, MEANINGS, help_text
from tui.screens.run import RunScreen, acceptance_title, length_words, link_problem
from tui.state import Console, LinkState, RunView
from tui.widgets.events import tripped
from tui.widgets.headline import failure_words, headline
from tui.widgets.plot import MetricPlot
from tui.widgets.progress import progress_text

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_live_run_shows_stages_progress_plots_and_log(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    write_run(container.root, "run-a", steps=62)
    async with make_app(run_id="run-a").run_test(size=size) as pilot:
        screen = await until_seen(pilot, "● running", "step 61 loss", "simulated 1.20")
        for text in ("✓ prepare", "✓ regenerate", "● train", "· evaluate", "so far", "34%", "62/180 steps", "1.2 s per step"):
            assert text in screen
        assert "2 min 26 s left" in screen
        assert "served" not in screen
        await until(pilot, lambda: pilot.app.screen.query_one("#loss", MetricPlot).builds == 1, "the plot")
        assert "⠑" in seen(pilot.app) or "⠢" in seen(pilot.app)  # type: ignore[arg-type]
        assert "s Stop" in screen and "r Resume" not in screen


@pytest.mark.parametrize("size", SIZES)
async def test_a_finished_run_shows_verdict_and_figures(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    write_run(container.root, "run-a", "finished", steps=180)
    async with make_app(run_id="run-a").run_test(size=size) as pilot:
        screen = await until_seen(pilot, "✓ finished", "Verdict", "Figures")
        assert "The draft learned" in screen
        assert "served" in screen and "simulated" in screen
        assert "s Stop" not in screen and "r Resume" not in screen
        await pilot.press("v")
        await until_seen(pilot, "Details", "broken_below")
        await pilot.press("end")  # the folder's name may fold
        await until_seen(pilot, "Events, newest first")
        await pilot.press("escape")
        await until_seen(pilot, "Stages")


async def test_a_long_verdict_leaves_room_for_the_figures_and_says_that_it_is_cut(
    container: FakeContainer, make_app: MakeApp
) -> None:
    run = write_run(container.root, "run-a", "finished", steps=180)
    result = json.loads((run / "result.json").read_text()) | {"verdict_text": "The draft learned this and that. " * 30}
    (run / "result.json").write_text(json.dumps(result))
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        screen = await until_seen(pilot, "Figures  served", "Verdict  The draft", "… (v shows all)", "Log")
        assert screen.index("Figures  ") < screen.index("Verdict  ")


async def test_a_failed_run_says_why_before_anything_else(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", "failed", steps=12)
    lines(
        run / "events.jsonl",
        [event("failed", "The server [extract] died. Set X=1 and resume.", "error", detail="Traceback [/x]")],
    )
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "What attempt 1 failed with:", "Traceback [/x]")
        screen = await until_seen(pilot, "✗ failed", "The server [extract] died. Set X=1 and resume.", "✗ train")
        rows = screen.splitlines()
        assert "The server [extract] died" in rows[2]
        assert "r Resume" in screen
        await pilot.press("v")
        await until_seen(pilot, "Traceback [/x]")


@pytest.mark.parametrize("size", SIZES)
async def test_guards_that_tripped_stand_above_the_other_events_each_once_with_how_often(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    run = write_run(container.root, "run-a")
    rows = [
        event("guard-nan", "of an attempt before", "error", NOW - 500),
        event("attempt_started", "attempt 2 started", t=NOW - 400, attempt=2),
        event("guard-stall", "nothing heard for 6 min", "warn", NOW - 300, attempt=2),
        event("guard-clock", "the clock jumped by +7200 s", "warn", NOW - 200, attempt=2),
        event("guard-stall", "nothing heard for 9 min", "warn", NOW - 100, attempt=2),
        event("stage", "train began", t=NOW - 90, attempt=2),
    ]
    lines(run / "events.jsonl", rows)
    async with make_app(run_id="run-a").run_test(size=size) as pilot:
        screen = await until_seen(pilot, "▲ guard stall ×2", "▲ guard clock")
        assert screen.index("guard stall") < screen.index("guard clock")
        assert "guard nan" not in screen


def test_the_kinds_that_older_runs_have_for_three_guards_are_read_as_these() -> None:
    old = {"stalled": "stall", "server-died": "server", "disk_low": "disk", "guard-nan": "nan", "stage": ""}
    events = [Event.model_validate(event(kind, "x", t=NOW + n)) for n, kind in enumerate(old)]
    assert [one.guard_name for one in events] == list(old.values())
    assert [(one.guard_name, times) for one, times in tripped(events)] == [("nan", 1), ("disk", 1), ("server", 1), ("stall", 1)]


async def test_remote_text_is_text(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=3)
    nasty = [
        "[/red] closing",
        "[bold red]no style[/]",
        "\x1b]0;owned\x07after title",
        "\x1b[31mred\x1b[0m plain",
        "10%\r20%\r30% done",
    ]
    with (run / "attempts/1/run.log").open("a") as log:
        log.write("\n".join([*nasty, "x" * 90_000, "last line"]) + "\n")
    lines(run / "events.jsonl", [event("note", "[/] an \x1b[2Jevent", "warn")])
    container.update("run-a", label={"target": "[/x]", "machine": "[@click=app.exit]m[/]"}, state_text="[/]")
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        screen = await until_seen(
            pilot, "last line", "[/red] closing", "[bold red]no style[/]", "▲ [/] an event", "[/x] on [@click"
        )
        assert "after title" in screen and "owned" not in screen
        assert "30% done" in screen and "20%" not in screen
        await pilot.press("1")
        await until_seen(pilot, "[/x]")


async def test_nan_and_inf_are_gaps_and_never_end_the_console(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=2)
    (run / "metrics.jsonl").write_text("")
    rows = [metric(k, loss=[float("nan"), float("inf"), None, 3.0, -float("inf")][k % 5]) for k in range(40)]
    rows.append(metric(41, acc_pos=[None, float("nan"), float("inf")], accept_len=float("nan")))
    lines(run / "metrics.jsonl", rows)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "Loss")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.builds >= 1, "the plot")
        assert "3.0" in seen(pilot.app)  # type: ignore[arg-type]


async def test_a_run_without_a_point_yet_says_so(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=1)
    (run / "metrics.jsonl").write_text("")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "no points yet")


async def test_plots_are_rebuilt_only_when_it_is_time_and_something_changed(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    run = write_run(container.root, "run-a", steps=30)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 29")
        loss = pilot.app.screen.query_one("#loss", MetricPlot)
        await until(pilot, lambda: loss.builds == 1, "the first plot")
        clock.now += 10
        pilot.app.present()  # type: ignore[attr-defined]
        await pilot.press("question_mark")
        await until_seen(pilot, "Help")
        await pilot.press("escape")
        await until_seen(pilot, "Stages")
        clock.now += 1  # what stood there is painted first; it may be built anew in the next turn
        assert loss.builds == 1  # a repaint without news draws the kept picture
        lines(run / "metrics.jsonl", [metric(31)])
        await until(pilot, lambda: loss.builds == 2, "the new point")
        lines(run / "metrics.jsonl", [metric(32)])
        await until(pilot, lambda: pilot.app.console_state.open_run.metrics.last("train", "train").step == 32, "news")  # type: ignore
        assert loss.builds == 2  # the clock stands still: it is not time yet


async def test_a_quiet_stage_says_why(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    progress = json.loads((run / "progress.json").read_text())
    progress |= {"stage": "extract", "quiet_until": NOW + 300, "reason": "the model is loading"}
    (run / "progress.json").write_text(json.dumps(progress))
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "the model is loading; may be quiet for 5 min 00 s more")


async def test_zoom_shows_only_the_plots_then_only_the_log(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "Stages", "Log", "Loss")
        await pilot.press("z")
        await until(pilot, lambda: "Stages" not in seen(pilot.app) and "Loss" in seen(pilot.app), "only the plots")  # type: ignore
        await pilot.press("z")
        await until(pilot, lambda: "Loss" not in seen(pilot.app) and "step 61" in seen(pilot.app), "only the log")  # type: ignore
        await pilot.press("z")
        await until_seen(pilot, "Stages", "Log", "Loss")


async def test_stopping_asks_how_and_escape_stops_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?", "After the checkpoint", "Now", "Keep running")
        await pilot.press("escape")
        await until_seen(pilot, "Stages")
        assert container.stops == []
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?")
        await pilot.press("n")
        await until_seen(pilot, "■ stopped", "r Resume")
        assert container.stops == [("run-a", "now")]


async def test_a_stop_after_the_checkpoint_has_a_key_of_its_own(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("s")
        await until_seen(pilot, "Stop the run?")
        await pilot.press("c")
        await until(pilot, lambda: container.stops == [("run-a", "after-checkpoint")], "the stop")


async def test_a_stopped_run_is_resumed_once_after_a_confirmation(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "stopped")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped", "r Resume")
        await pilot.press("r")
        await until_seen(pilot, "Resume the run?", "prepare, regenerate")
        await pilot.press("y")
        await until_seen(pilot, "● running", "attempt 2")
        assert container.launches == [("run-a", "pilot", True)]


async def test_keys_that_the_state_does_not_allow_do_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "finished")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "✓ finished")
        await pilot.press("s", "r", "x", "f5", "ctrl+x")
        assert isinstance(pilot.app.screen, RunScreen)
        assert (container.stops, container.launches) == ([], [])


async def test_a_run_that_is_not_there_says_so(make_app: MakeApp) -> None:
    async with make_app(run_id="gone").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "There is no run called 'gone'.")


async def test_a_link_lost_while_watching_keeps_the_picture_and_says_that_it_is_stale(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a", poll_s=5.0).run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 61")
        container.down = "The host does not answer."
        clock.now += 20
        screen = await until_seen(pilot, "✗ down since", "▲ The host does not answer.")
        assert "step 61" in screen
        assert pilot.app.screen.query_one("#panes").has_class("stale")
        container.down = ""
        await until(pilot, lambda: "The host does not answer." not in seen(pilot.app), "the link")  # type: ignore
        assert seen(pilot.app).count("step 61") == 1  # type: ignore[arg-type]


async def test_without_a_run_the_screen_says_what_to_press(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "none yet")
        await pilot.press("4")
        await until_seen(pilot, "No run is open.  Press 5 to choose one, or p to launch the pilot.")


async def test_a_run_launched_from_the_picture_of_an_ended_one_can_be_stopped(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a", "stopped")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped", "r Resume")
        await pilot.press("p")
        await until_seen(pilot, "Launch the pilot?")
        await pilot.press("y")
        await until_seen(pilot, "● running", "s Stop")


def test_a_link_that_is_down_is_said_on_the_run_with_its_reason_at_once() -> None:
    console = Console("box")
    view = console.watch("run-a")
    view.take(News(RunSummary(run_id="run-a", state="running", now=NOW)), NOW)
    assert link_problem(console, view, NOW) == ""
    console.take_link(LinkState("down", NOW, "box refuses connections."))
    words = link_problem(console, view, NOW + 3)
    assert words == "box refuses connections. Last heard 3 s ago."
    assert f"▲ {words}" in [line.plain for line in headline(view, NOW + 3, False, 80, words)]


def test_details_are_rounded_and_help_explains_every_state_and_the_plots() -> None:
    view = RunView("run-a", result=Result(val={"acc_pos": [0.12345678901234567], "drafts": 12}))
    assert '{"acc_pos": [0.1235], "drafts": 12}' in details_text(view).plain
    words = help_text().plain
    assert set(MEANINGS) == set(STATE_WORDS)
    assert all(meaning in words for meaning in (*MEANINGS.values(), *LEGEND))


def test_details_tell_the_curve_the_kinds_and_the_published_drafts_and_an_older_result_has_none() -> None:
    part = {"accept_len": 1.5, "accept_len_interval": [1.4, 1.6], "drafts": 300, "prompts": 10}
    point = {"concurrency": 1, "tok_s": 114.0, "tok_s_no_draft": 88.5, "speedup": 1.2881}
    theirs = {"name": "theirs", "lengths": {"MT-Bench": 2.69}, "text": "after 9 tokens"}
    found = Result(
        curve=[point, point | {"concurrency": 128, "speedup": 0.98}],
        kinds={"code": part, "talk": part},
        published={"ours": {"accept_len": 1.5}, "theirs": [theirs]},
    )
    words = details_text(RunView("run-a", result=found)).plain
    assert "1 in flight: 114.0 tokens/s with the draft, 88.5 without (1.29×)" in words
    assert "code: length 1.50 (1.40 to 1.60, drafts taken for independent) on 300 drafts, 10 prompts" in words
    assert "theirs reports 2.69 (MT-Bench); this one 1.50 served, after 9 tokens." in words
    assert "in flight" not in details_text(RunView("run-a", result=Result(served={"accept_len": 1.2}))).plain


def test_served_comes_first_and_the_wide_title_says_what_it_holds() -> None:
    view = RunView("run-a", result=Result(served={"accept_len": 1.27}))
    view.metrics.take([MetricRow(stage="train", split="val", step=1, acc_pos=[0.23, 0.05], accept_len=1.28)])
    assert length_words(view, 60) == "length served 1.27 · simulated 1.28"
    assert length_words(view, 30) == "served 1.27 · simulated 1.28"
    assert acceptance_title(view, 60).startswith("Acceptance by position, held-out [")
    assert acceptance_title(view, 30).startswith("Acceptance [") and "]0.23[/]" in acceptance_title(view, 30)
    assert acceptance_title(view, 15).startswith("Accept [") and "].23[/]" in acceptance_title(view, 15)


def test_a_failure_that_only_the_log_explains_shows_its_last_line() -> None:
    view = RunView("run-a")
    summary = RunSummary(run_id="run-a", state="failed", state_text="failed with exit code 1", attempt=1, exit_code=1)
    ended = Event(kind="attempt_ended", level="error", text="attempt 1 ended: exit code 1")
    view.take(News(summary, events=[ended], log="Traceback\nModuleNotFoundError: No module named 'torch'\n\n"), NOW)
    assert failure_words(view) == ("failed with exit code 1; its log ends with: ModuleNotFoundError: No module named 'torch'")


async def test_a_stop_that_waits_for_the_checkpoint_stays_in_sight(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", stop_mode="after-checkpoint", stop_by="ann")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "■ stopping after the next checkpoint, asked by ann")


async def test_a_key_that_the_state_does_not_allow_says_why(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "no GPU")
        await pilot.press("4", "s")
        await until_seen(pilot, "No run is open; press 5")
    write_run(container.root, "run-a", "finished")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "✓ finished")
        await pilot.press("P")
        await until_seen(pilot, "run-a has ended (finished)")
        await pilot.press("r")
        await until_seen(pilot, "run-a is finished; only a")


def test_a_pause_that_is_asked_for_is_told_until_the_run_holds() -> None:
    view = RunView("run-a")
    asked = RunSummary(
        run_id="run-a", state="running", state_text="pausing after the work under way", attempt=1, paused_at=NOW, paused_by="bob"
    )
    view.take(News(asked), NOW)
    lines = [line.plain for line in headline(view, NOW, stale=False)]
    assert "■ pausing after the work under way, asked by bob; P lets it go on" in lines
    both = [Pause(by="bob", t=NOW), Pause(by="the guard server", t=NOW, guard="server")]
    view.take(News(asked.model_copy(update={"paused": both})), NOW)
    assert any("asked by bob and the guard server;" in line.plain for line in headline(view, NOW, stale=False))


def test_a_run_that_is_held_says_by_whom_and_which_key_ends_it() -> None:
    reason = "Paused by ann since 10:00 and the guard server since 10:05; it keeps its memory and its devices."
    ann, guard = Pause(by="ann", t=NOW), Pause(by="the guard server", t=NOW, guard="server")
    progress = Progress(stage="train", done=3, total=9, unit="steps", t=NOW, quiet_until=NOW + 60, reason=reason)
    run = RunSummary(
        run_id="run-a", state="running", state_text=reason, paused=[ann, guard], paused_at=NOW, now=NOW, progress=progress
    )
    view = RunView("run-a")
    view.take(News(run), NOW)
    lines = [line.plain for line in headline(view, NOW, stale=False)]
    way_on = "P ends the pauses of people, once more those of guards"
    assert f"■ paused by ann since 10:00 and the guard server since 10:05; {way_on}" in lines
    assert "\n" not in progress_text(view, NOW, 76).plain  # the pause is told once
    view.take(News(run.model_copy(update={"paused": [guard]})), NOW)
    assert any(line.plain.endswith("; P lets it go on") for line in headline(view, NOW, stale=False))


def test_why_it_is_quiet_is_one_sentence() -> None:
    view = RunView("run-a")
    progress = Progress(stage="extract", done=3, total=9, unit="states", t=NOW, quiet_until=NOW + 60, reason="The server loads.")
    view.take(News(RunSummary(run_id="run-a", state="running", state_text="running", now=NOW, progress=progress)), NOW)
    assert progress_text(view, NOW, 76).plain.endswith("◌ The server loads; may be quiet for 1 min 00 s more")
