"""Runs: found again by words and order, laid side by side; what differs is what is told."""

from __future__ import annotations

from eagle3.core import presets
from eagle3.core.records import MetricRow, Result, RunSummary
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui.comparing import COLOURS, MOST, SORTS, Choice, Compared, differing, fields, figures_of
from tui.formats import UNKNOWN
from tui.screens.compare import legend
from tui.screens.runs import title
from tui.state import Known, RunView
from tui.widgets.runs_table import cells


def known(run_id: str, state: str = "finished", created_at: float = NOW, **label: str) -> Known[RunSummary]:
    return Known(RunSummary(run_id=run_id, state=state, created_at=created_at, label=label, actor="ann"), NOW)  # type: ignore[arg-type]


RUNS = [known("a", "failed", NOW - 50), known("b", "running", NOW - 90), known("c", "finished", NOW - 10, target="kimi-k2.5")]


def names(choice: Choice) -> list[str]:
    return [k.value.run_id for k in choice.of(RUNS)]


def test_runs_are_ordered_as_asked() -> None:
    found = {}
    choice = Choice()
    for _ in SORTS:
        found[choice.sort] = names(choice)
        choice = choice.next_sort()
    assert choice.sort == SORTS[0]
    assert found["live first"] == ["b", "c", "a"]
    assert found["newest"] == ["c", "a", "b"] and found["oldest"] == ["b", "a", "c"]
    assert found["name"] == ["a", "b", "c"] and found["state"] == ["a", "c", "b"]


def test_a_filter_takes_runs_whose_line_holds_every_word() -> None:
    assert names(Choice("FAILED")) == ["a"]
    assert names(Choice("ann kimi")) == ["c"]
    assert names(Choice("nothing")) == []
    assert title(Choice("[x"), 0, 3, 2) == "Runs · 0 of 3 with '\\[x' · live first · 2 marked"


def test_what_differs_between_two_specs_is_told_and_nothing_else() -> None:
    first = presets.resolve("pilot", "smollm2-135m", "cpu")
    second = presets.resolve("pilot", "smollm2-135m", "cpu", {"train.learning_rate": 5e-4, "workspace": "/elsewhere"})
    found = differing({"a": fields(first.to_toml()), "b": fields(second.to_toml())})
    assert found == [("train.learning_rate", {"a": "0.001", "b": "0.0005"})]
    assert differing({"a": {"x": 1}, "b": {}}) == [("x", {"a": "1", "b": UNKNOWN})]
    assert fields("not = [toml") == {}


def test_simulated_and_served_length_have_names_of_their_own() -> None:
    view = RunView("a")
    view.metrics.take([MetricRow(stage="train", split="val", step=9, acc_pos=[0.2, 0.1], accept_len=1.3)])
    figures = figures_of(view)
    assert figures["Simulated length"] == "1.30" and "Served length" not in figures


def test_a_served_length_stands_with_its_interval_and_an_older_one_with_what_it_took_for_independent() -> None:
    served = {"accept_len": 1.3, "accept_len_interval": [1.21, 1.39], "drafts": 900}
    now = figures_of(RunView("a", result=Result(served=served | {"answers": 20})))
    assert (now["Served length"], now["Served length, 95 %"]) == ("1.30", "1.21 to 1.39")
    older = figures_of(RunView("a", result=Result(served=served)))
    assert older["Served length, 95 %"] == "1.21 to 1.39, drafts taken for independent"


def test_each_run_has_a_colour_of_its_own_and_a_run_that_went_is_dropped() -> None:
    compared = Compared(("a", "b"))
    for run_id in ("a", "b", "gone"):
        view = RunView(run_id)
        view.metrics.take([MetricRow(stage="train", step=1, loss=2.0)])
        compared.take(run_id, view, "", "")
    lines = compared.curves("loss", "step")
    assert [(line.name, line.colour) for line in lines] == [("a", COLOURS[0]), ("b", COLOURS[1])]
    assert len(COLOURS) >= MOST


def test_a_run_that_goes_on_says_as_of_when_it_is_compared() -> None:
    compared = Compared(("a", "b"))
    for run_id, state in (("a", "running"), ("b", "finished")):
        view = RunView(run_id)
        view.summary, view.at = RunSummary(run_id=run_id, state=state), 100.0  # type: ignore[arg-type]
        compared.take(run_id, view, "", "")
    assert legend(compared, 7300.0).plain.split() == ["━", "a", "as", "of", "2", "h", "ago", "━", "b"]


async def test_two_runs_are_compared_from_the_keyboard(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "finished", steps=180)
    other = write_run(container.root, "run-b", "failed", steps=40)
    spec = presets.resolve("pilot", "smollm2-135m", "cpu", {"train.learning_rate": 5e-4})
    (other / "spec.toml").write_text(spec.to_toml())
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a", "run-b")
        await pilot.press("5")
        await until_seen(pilot, "live first")
        await pilot.press("space", "down", "space")
        await until_seen(pilot, "2 marked", "▪ run-a", "▪ run-b")
        await pilot.press("c")
        screen = await until_seen(pilot, "━ run-a", "━ run-b", "Figures", "Training loss")
        assert "being read" not in screen
        await pilot.press("pagedown", "pagedown", "pagedown")
        await until_seen(pilot, "What differs", "train.learning_rate", "0.0005", "0.001")
        await pilot.press("m")
        await until_seen(pilot, "Acceptance, position 1")


async def test_runs_whose_names_begin_alike_are_told_apart(container: FakeContainer, make_app: MakeApp) -> None:
    names = [f"pilot-smollm2-135m-20261130-180{k}" for k in (1, 2, 3)]
    for name in names:
        spec = presets.resolve("pilot", "smollm2-135m", "cpu", {"data.prompts": f"/data/prompts/of-every-kind-{name[-1]}.jsonl"})
        (write_run(container.root, name, "failed", steps=20) / "spec.toml").write_text(spec.to_toml())
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "1803")
        await pilot.press("5", "space", "down", "space", "down", "space", "c")
        screen = await until_seen(pilot, "Figures")
        [heads] = [line for line in screen.splitlines() if "Figures" in line]
        assert all(end in heads for end in ("…1801", "…1802", "…1803"))
        await pilot.press("pagedown", "pagedown", "pagedown")
        screen = await until_seen(pilot, "What differs", "data.prompts")
        [values] = [line for line in screen.splitlines() if "data.prompts" in line]
        assert all(f"{k}.jsonl" in values for k in (1, 2, 3))


async def test_ended_runs_without_points_leave_nothing_to_wait_for(container: FakeContainer, make_app: MakeApp) -> None:
    for name in ("run-a", "run-b"):
        (write_run(container.root, name, "failed", steps=1) / "metrics.jsonl").write_text("")
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "run-a", "run-b")
        await pilot.press("5")
        await until_seen(pilot, "live first")
        await pilot.press("space", "down", "space", "c")
        await until_seen(pilot, "━ run-a", "━ run-b", "they left no points")


async def test_filter_and_sort_work_while_typing_and_one_run_alone_is_no_comparison(
    container: FakeContainer, make_app: MakeApp
) -> None:
    write_run(container.root, "run-a", "finished")
    write_run(container.root, "other", "failed")
    async with make_app().run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "run-a", "other")
        await pilot.press("5", "slash", *"fail")
        await until(pilot, lambda: "run-a" not in seen(pilot.app) and "other" in seen(pilot.app), "the filter")  # type: ignore[arg-type]
        await pilot.press("enter", "c")
        await until_seen(pilot, "Mark two runs", "1 of 2 with 'fail'")
        await pilot.press("o")
        await until_seen(pilot, "newest")
        await pilot.press("slash", "backspace", "backspace", "backspace", "backspace", "escape")
        await until_seen(pilot, "run-a", "other")


def test_a_run_that_is_held_or_being_stopped_is_not_said_to_run() -> None:
    run = known("a", "running").value
    held = {"paused_at": NOW, "paused_by": "bob"}
    for update, words in (
        ({}, "● running"),
        ({**held, "state_text": "pausing after the work under way"}, "● pausing"),
        ({**held, "state_text": "Paused by bob since 10:00; it keeps its memory and its devices."}, "● paused"),
        ({**held, "stop_mode": "now"}, "● stopping"),
    ):
        changed = Known(run.model_copy(update=update), NOW)
        assert cells(changed, NOW, stale=False)["State"].plain == words
        assert Choice(words=words.split()[1]).of([changed]) == [changed]
