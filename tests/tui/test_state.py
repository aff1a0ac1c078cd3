"""What the console knows, and how old it is."""

from __future__ import annotations

from eagle3.core.records import Event, MetricRow, Probe, Progress, Result, RunSummary
from tests.tui.support.container import News
from tests.tui.support.folders import NOW
from tui.plotting.figures import FIGURES
from tui.state import LOG_LINES, Console, LinkState, RunView, run_age_s
from tui.widgets.stages import lasted_s


def losses(view: RunView) -> list[tuple[float, float]]:
    """The training loss over steps, as it is plotted."""
    return [point for line in FIGURES["loss"].lines(view.metrics, "step") if line.name == "train" for point in line.points]


def news(state: str = "running", attempt: int = 1, **more: object) -> News:
    return News(RunSummary(run_id="r", state=state, attempt=attempt, now=NOW), **more)  # type: ignore[arg-type]


def test_a_value_never_learnt_has_no_age_and_is_stale() -> None:
    console = Console("box", poll_s=5)
    assert console.probe.age(NOW) is None
    assert console.stale(console.probe.at, NOW)


def test_a_value_is_stale_after_three_polls() -> None:
    console = Console("box", poll_s=5)
    console.take_probe(Probe(now=1.0), at=NOW)
    assert console.probe.age(NOW + 12) == 12
    assert not console.stale(console.probe.at, NOW + 15)
    assert console.stale(console.probe.at, NOW + 15.1)


def test_a_value_that_was_learnt_in_the_future_is_stale_since_the_clock_was_set_back() -> None:
    console = Console("box", poll_s=5)
    assert not console.stale(NOW, NOW - 2), "a clock is put right by a little now and then"
    assert console.stale(NOW, NOW - 3600)


def test_a_failed_probe_keeps_what_was_known_with_the_reason() -> None:
    console = Console("box")
    console.take_probe(Probe(now=1.0), at=NOW)
    console.take_problem("No answer.")
    assert console.probe.value is not None
    assert console.probe.problem == "No answer."
    console.take_probe(Probe(now=2.0), at=NOW)
    assert console.probe.problem == ""


def test_ages_of_records_follow_the_containers_clock_not_ours() -> None:
    view = RunView("r")
    view.take(News(RunSummary(run_id="r", now=1000.0)), at=NOW)  # the container's clock is decades behind
    assert view.age_of(990.0, NOW + 5) == 15


def test_a_run_that_the_probe_no_longer_names_is_gone() -> None:
    console = Console("box")
    console.take_probe(Probe(runs=[RunSummary(run_id="a"), RunSummary(run_id="b")]), NOW)
    console.take_probe(Probe(runs=[RunSummary(run_id="b")]), NOW)
    assert list(console.runs) == ["b"]


def test_runs_of_the_catalog_never_replace_what_the_host_said() -> None:
    console = Console("box")
    console.take_runs([RunSummary(run_id="a", state="running")], NOW)
    console.remember([(RunSummary(run_id="a", state="failed"), NOW - 99), (RunSummary(run_id="old", state="finished"), NOW - 99)])
    assert console.runs["a"].value.state == "running"
    assert console.runs["old"].at == NOW - 99


def test_live_runs_come_first_then_the_newest() -> None:
    console = Console("box")
    console.take_runs(
        [
            RunSummary(run_id="old", state="finished", created_at=1),
            RunSummary(run_id="new", state="failed", created_at=9),
            RunSummary(run_id="live", state="running", created_at=5),
        ],
        NOW,
    )
    assert [known.value.run_id for known in console.runs_by_age()] == ["live", "new", "old"]
    assert console.latest_run() == "live"


def test_news_is_added_to_what_was_known_of_the_run() -> None:
    view = RunView("r")
    view.take(news(rows=[MetricRow(stage="train", step=1, loss=3.0)], log="one\n", events=[Event(text="a")]), NOW)
    view.take(news(rows=[MetricRow(stage="train", step=2, loss=2.0)], log="two\n", progress=Progress(stage="train", done=2)), NOW)
    assert losses(view) == [(1, 3.0), (2, 2.0)]
    assert list(view.log) == ["one", "two"]
    assert view.progress is not None and view.progress.done == 2
    assert len(view.events) == 1


def test_a_reset_file_starts_again_and_the_others_stay() -> None:
    view = RunView("r")
    view.take(news(rows=[MetricRow(stage="train", step=1, loss=3.0)], log="one\n", events=[Event(text="a")]), NOW)
    view.take(news(log="new\n", reset=frozenset({"run.log"})), NOW)
    assert list(view.log) == ["new"]
    assert losses(view) == [(1, 3.0)]
    assert len(view.events) == 1


def test_following_anew_does_not_double_anything() -> None:
    view = RunView("r")
    for _ in range(2):
        view.take(news(rows=[MetricRow(stage="train", step=1, loss=3.0)], log="one\n", events=[Event(text="a")]), NOW, fresh=True)
    assert list(view.log) == ["one"]
    assert len(view.events) == 1


def test_the_log_keeps_its_tail_and_a_reader_gets_only_new_lines() -> None:
    view = RunView("r")
    view.take(news(log="".join(f"{n}\n" for n in range(LOG_LINES + 10))), NOW)
    assert len(view.log) == LOG_LINES
    assert list(view.new_log(LOG_LINES + 8)) == [str(LOG_LINES + 8), str(LOG_LINES + 9)]
    assert len(list(view.new_log(0))) == LOG_LINES
    assert list(view.new_log(view.log_seq)) == []


def test_the_failure_is_the_last_error_of_the_last_attempt() -> None:
    view = RunView("r")
    errors = [
        Event(attempt=1, level="error", text="old"),
        Event(attempt=2, level="error", text="first"),
        Event(attempt=2, text="x"),
    ]
    view.take(news("failed", attempt=2, events=[*errors, Event(attempt=2, level="error", text="last")]), NOW)
    assert view.failure is not None and view.failure.text == "last"
    view.take(news("failed", attempt=2, events=[Event(attempt=2, level="error", kind="attempt_ended", text="code 1")]), NOW)
    assert view.failure.text == "last", "that it has ended is no reason"
    view.take(news("running", attempt=3), NOW)
    assert view.failure is None


def test_the_verdict_of_an_earlier_attempt_goes_when_the_run_goes_on() -> None:
    view = RunView("r")
    view.take(news("finished", result=Result(verdict="learns")), NOW)
    assert view.result is not None
    view.take(news("running", attempt=2), NOW)
    assert view.result is None


def test_how_far_an_earlier_attempt_came_goes_when_the_run_goes_on() -> None:
    view = RunView("r")
    view.take(news("stopped", progress=Progress(stage="train", done=62)), NOW)
    view.take(news("starting", attempt=2), NOW)
    assert view.progress is None


def test_a_run_view_starts_with_what_the_list_knew() -> None:
    console = Console("box")
    console.take_runs([RunSummary(run_id="a", state="stopped")], NOW - 7)
    view = console.watch("a")
    assert (view.state, view.resumable, view.ended, view.heard) == ("stopped", True, True, False)
    assert console.watch("a") is view


def test_a_run_lasts_until_its_end_or_until_now() -> None:
    live = RunSummary(run_id="a", started_at=100, now=160)
    assert run_age_s(live, NOW, NOW + 5) == 65
    assert run_age_s(live.model_copy(update={"ended_at": 130}), NOW, NOW + 5) == 30
    assert run_age_s(live.model_copy(update={"created_at": 40}), NOW, NOW) == 120, "a resume starts no new count"
    assert run_age_s(RunSummary(run_id="b"), NOW, NOW) is None


def test_what_the_result_says_of_the_time_counts() -> None:
    view = RunView("r")
    view.take(News(RunSummary(run_id="r", state="finished", created_at=NOW - 500, ended_at=NOW, now=NOW)), NOW)
    assert lasted_s(view, NOW) == 500
    view.result = Result(wall_s=321.0)
    assert lasted_s(view, NOW) == 321.0


def test_a_reason_from_the_wire_is_cleaned() -> None:
    assert LinkState.of(LinkState("down", 1, "gone \x1b[31mred\x1b[0m")).reason == "gone red"
