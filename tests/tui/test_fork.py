"""Forking from the console: where to begin, what is taken over, one confirmation; and one note of one line."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3.core import presets
from eagle3.core.estimate import estimate
from eagle3.core.lineage import ForkError
from eagle3.core.presets import SpecError
from eagle3.core.records import Disk, Forkable, NotesText, Probe
from eagle3.runner import rundir
from remote.container import Container
from remote.errors import ContainerError
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import until, until_seen
from tests.tui.support.folders import NOW, write_run
from tests.tui.test_local import FAKE_WORKER
from tests.tui.test_oneshot import talk
from tui import expect
from tui.fork_command import Wanted, fork
from tui.forking import origins, planned
from tui.formats import bytes_label

PARENT = presets.resolve("pilot", "smollm2-135m", "cpu")
THERE = Forkable(
    run_id="run-a", stages=["prepare", "regenerate", "extract", "vocabulary"], checkpoints=[50, 100], spec_toml=PARENT.to_toml()
)


def checkpoint(run: Path, step: int) -> None:
    folder = run / "train" / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "complete.json").write_text(json.dumps({"step": step, "files": {}}))


def test_a_fork_may_begin_at_a_checkpoint_or_at_a_stage_that_has_all_before_it() -> None:
    words = [word for word, _ in origins(THERE)]
    assert words == ["train@100", "train@50", "", "train", "vocabulary", "extract", "regenerate", "prepare"]


def test_the_plan_names_what_is_taken_over_and_what_differs() -> None:
    made = planned(THERE, "train@50", ["train.learning_rate=5e-4"], "/data/e")
    assert made.plan.takes == ("prepare", "regenerate", "extract", "vocabulary")
    assert (made.plan.checkpoint, made.spec.workspace, made.spec.forked_from) == (50, "/data/e", "run-a@step-50")
    assert made.changes == ("train.learning_rate: 0.001 → 0.0005",)
    rows = dict(made.rows("box", "new-run", "9 GiB free"))
    assert rows["Takes over"].startswith("prepare, regenerate") and "checkpoint step-50" in rows["Runs again"]


def test_a_fork_asks_no_room_for_what_it_links_to() -> None:
    whole = planned(THERE, "prepare", ["evaluate.prompts=4"], "~/eagle3")
    made = planned(THERE, "train@50", ["train.learning_rate=5e-4"], "~/eagle3")
    said = dict(made.rows("box", "new-run", ""))["Disk"]
    assert said.startswith(f"at most {bytes_label(estimate(made.spec, taken=made.plan.takes).peak_bytes)} beside what is linked")
    between = (estimate(whole.spec).peak_bytes + estimate(made.spec, taken=made.plan.takes).peak_bytes) // 2
    disk = Disk(path="~/eagle3", mount="/", total_bytes=9 << 30, free_bytes=between + PARENT.disk_floor_bytes)
    assert "not enough" in expect.free_words(Probe(disks=[disk]), whole.spec, whole.plan.takes)
    assert "not enough" not in expect.free_words(Probe(disks=[disk]), made.spec, made.plan.takes)


@pytest.mark.parametrize(
    ("origin", "change", "words"),
    [
        ("train@70", "", "There is no complete checkpoint of step 70; there is: 50, 100."),
        ("train@x", "", "'train@x' is no place to fork from"),
        ("nowhere", "", "There is no stage 'nowhere'"),
        ("train@50", "vocabulary.size=4096", "fork --from-stage vocabulary"),
        ("", "train.max_steps=0", "train.max_steps: a whole number of 1 or more (steps), not 0."),
        ("", "workspace=/x", "a fork stands in the workspace of its parent"),
        ("", "evaluate.max_new_tokens=99999", "evaluate.max_new_tokens"),
        ("evaluate", "", "train has not finished in that run"),
    ],
)
def test_what_cannot_be_forked_is_said_in_one_sentence(origin: str, change: str, words: str) -> None:
    with pytest.raises((SpecError, ForkError)) as caught:
        planned(THERE, origin, [change], "~/eagle3")
    assert words in str(caught.value)


async def test_f_forks_from_a_checkpoint_after_a_confirmation_that_says_what_is_new(
    container: FakeContainer, make_app: MakeApp
) -> None:
    checkpoint(write_run(container.root, "run-a", "stopped"), 50)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped", "f Fork")
        await pilot.press("f")
        await until_seen(pilot, "Fork run-a", "train@50", "taken over from run-a")
        await pilot.press("enter", *"train.max_steps=x")
        await until_seen(pilot, "✗ train.max_steps: a whole number of 1 or more")
        await pilot.press("ctrl+l", "backspace", *"300")
        await until_seen(pilot, "train runs again from checkpoint", "Fork  Ctrl+l")
        await pilot.press("ctrl+l")
        await until_seen(pilot, "Fork run-a?", "Takes over", "prepare, regenerate, extract, vocabulary", "→ 300")
        assert container.forks == []
        await pilot.press("y")
        await until_seen(pilot, "● running", "pilot-fork-")
        [(parent, new_id, plan)] = container.forks
        assert (parent, plan.checkpoint, container.launches) == ("run-a", 50, [(new_id, "pilot", False)])
        longer = PARENT.model_copy(update={"train": PARENT.train.model_copy(update={"max_steps": 300})})
        needed = estimate(longer, taken=plan.takes).needs[0]
        assert container.asked[-1][0]["needs"][0] == vars(needed), "its readiness is of what is still to be done"


async def test_escape_forks_nothing_and_a_run_that_is_gone_says_so(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "stopped")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped")

        async def gone(run_id: str) -> Forkable:
            raise ContainerError("not_found", "There is no run run-a.", "Press 5.")

        container.forkable = gone  # type: ignore[method-assign]
        await pilot.press("f")
        await until_seen(pilot, "✗ There is no run run-a. Press 5.")
        await pilot.press("ctrl+l", "escape")
        await until_seen(pilot, "Stages")
        assert container.forks == []


async def test_a_secret_that_the_container_names_is_asked_for_and_not_taken_from_here(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "ours")
    run = write_run(container.root, "run-a", "stopped")
    (run / "launch.json").write_text(json.dumps({"secret_env": ["HF_TOKEN"]}))
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "■ stopped")
        await pilot.press("f")
        await until_seen(pilot, "taken over from run-a")
        await pilot.press("ctrl+l")
        await until_seen(pilot, "Fork run-a?")
        await pilot.press("y")
        await until_seen(pilot, "needs: HF_TOKEN")
        await pilot.press("enter")
        await until_seen(pilot, "Nothing was typed")
        await pilot.press(*"typed", "enter")
        await until_seen(pilot, "● running", "pilot-fork-")
        assert container.secrets[container.forks[0][1]] == {"HF_TOKEN": "typed"}


async def test_n_adds_one_line_with_time_and_name_and_escape_adds_none(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("n", *"no", "escape")
        await pilot.press("n", *"the q key is text", "enter")
        await until_seen(pilot, "The note is in NOTES.md.")
        text = (run / "NOTES.md").read_text()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW))
        assert text == f"- {stamp} tests: the q key is text\n"


async def test_a_note_that_is_refused_stays_to_be_tried_again_and_stands_there_once(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    run = write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("n", *"kept")
        container.down = "The link is lost."
        await pilot.press("enter")
        await until_seen(pilot, "✗ Not added: The link is lost. Enter tries again.", "kept")
        await pilot.press("p", "backspace")  # text, and no pilot
        container.down = ""
        clock.now += 60
        await pilot.press("enter")
        await until(pilot, lambda: (run / "NOTES.md").exists(), "the note")
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW))
        assert (run / "NOTES.md").read_text() == f"- {stamp} tests: kept\n", "the line of the first try: it may have arrived"


async def test_a_note_on_its_way_is_not_lost_to_the_next_one(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(container.root, "run-a")
    slow, add = asyncio.Event(), container.add_note

    async def add_slowly(line: str, run_id: str = "") -> NotesText:
        await slow.wait()
        return await add(line, run_id)

    monkeypatch.setattr(container, "add_note", add_slowly)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        for words in ("first", "second"):
            await pilot.press("n", *words, "enter")
            await until_seen(pilot, "Being added")
            await pilot.press("escape")
        slow.set()
        await until(pilot, lambda: (run / "NOTES.md").exists() and "second" in (run / "NOTES.md").read_text(), "the second")
        await until(pilot, lambda: "first" in (run / "NOTES.md").read_text(), "the first")


async def test_the_command_says_what_it_would_do_and_does_it_once_under_one_id(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(write_run(container.root, "run-a", "stopped"), 50)
    wanted = Wanted("run-a", "train@50", ("train.max_steps=300",), "child", dry_run=True)
    assert await fork(talk(container), wanted, None) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["takes"], told["checkpoint"]) == (["prepare", "regenerate", "extract", "vocabulary"], 50)
    assert container.forks == []
    for _ in range(2):
        assert await fork(talk(container), Wanted("run-a", "train@50", (), "child"), None) == 0
    assert [run_id for run_id, _, _ in container.launches] == ["child", "child"]
    assert [json.loads(line)["already"] for line in capsys.readouterr().out.splitlines()] == [False, True]
    needed = estimate(PARENT, taken=("prepare", "regenerate", "extract", "vocabulary")).needs[0]
    assert container.asked[-1][0]["needs"][0] == vars(needed)


async def test_a_fork_over_the_real_link_links_the_parents_files_and_runs(tmp_path: Path) -> None:
    """The real helper and supervisor; the worker is the stand-in, which leaves finished stages alone."""
    workspace = str(tmp_path / "eagle3")
    spec = PARENT.model_copy(update={"worker_python": str(FAKE_WORKER)})
    async with Container(local=True, workspace=workspace, python=sys.executable) as there:
        await there.launch(spec, "parent")
        await _ended(there, "parent")
        run = rundir.run_path(workspace, "parent")
        for stage in ("prepare", "regenerate"):  # as a worker leaves them: outputs with their hashes
            record = rundir.read_object(run / "stages" / f"{stage}.json")
            rundir.write_json(run / "stages" / f"{stage}.json", {**record, "outputs": {}})
        found = await there.forkable("parent")
        assert {"prepare", "regenerate"} <= set(found.stages)
        made = planned(found, "extract", ["extract.concurrency=4"], workspace)
        for already in (False, True):
            assert (await there.fork("parent", "child", made.spec, made.plan))["already"] is already
        assert (await there.launch(made.spec, "child"))["already"] is False
        await _ended(there, "child")
        child = rundir.run_path(workspace, "child")
        assert rundir.read_object(child / "fork.json")["run_id"] == "parent"
        assert rundir.read_object(child / "stages" / "prepare.json")["forked_from"] == "parent"
        await there.add_note("- 2026-11-30 10:00:00 ann: worth another look", "child")
        assert "ann: worth another look" in (child / "NOTES.md").read_text()


async def _ended(there: Container, run_id: str) -> None:
    async for news in there.follow(run_id, poll_s=0.1):
        summary: Any = news.summary
    assert summary.state == "finished", summary
