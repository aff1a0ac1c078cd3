"""A run that works can be asked to pause, to go on and to save; one that does not is not asked."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import control as controlling
from eagle3.runner import launch as launching
from eagle3.runner import rundir, state
from eagle3.runner.errors import VerbError
from tests.runner.support import Channel, plan, summary, wait_for

SLEEPS = plan("import time; time.sleep(600)")


@pytest.fixture
def running(workspace: Path) -> Path:
    return Path(launching.launch(workspace, "r", "v = 1\n", SLEEPS)["run_dir"])


def said(run_dir: Path, reason: str) -> None:
    """What the worker writes while it holds."""
    rundir.write_json(run_dir / "progress.json", {"v": 1, "attempt": 1, "stage": "train", "t": time.time(), "reason": reason})


def test_a_pause_is_asked_for_once_and_ended_once(running: Path) -> None:
    answer = controlling.control(running, "pause", "ann")
    assert (answer["action"], answer["already"], answer["attempt"]) == ("pause", False, 1)
    order = rundir.read_json(running / "control.json")
    assert (order["attempt"], order["pause"]["by"], order["checkpoint"]) == (1, "ann", None)
    assert controlling.control(running, "pause", "bob")["already"] is True
    assert rundir.read_json(running / "control.json")["pause"]["by"] == "ann"
    assert controlling.control(running, "go-on", "bob")["already"] is False
    assert rundir.read_json(running / "control.json")["pause"] is None
    assert controlling.control(running, "go-on")["already"] is True


def test_the_state_says_that_it_pauses_and_then_that_it_is_paused(running: Path) -> None:
    assert summary(running)["paused_at"] is None
    controlling.control(running, "pause", "ann")
    found = summary(running)
    assert (found["state"], found["state_text"], found["paused_by"]) == ("running", "pausing after the work under way", "ann")
    said(running, "Paused by ann since 10:00; it keeps its memory and its devices.")
    assert summary(running)["state_text"].startswith("Paused by ann since 10:00")
    controlling.control(running, "go-on")
    assert summary(running)["state_text"] != "pausing after the work under way"


def test_asking_for_a_checkpoint_leaves_a_pause_as_it_is(running: Path) -> None:
    controlling.control(running, "pause", "ann")
    said(running, "")
    assert controlling.control(running, "checkpoint", "bob")["stage"] == "train"
    order = rundir.read_json(running / "control.json")
    assert (order["pause"]["by"], order["checkpoint"]["by"]) == ("ann", "bob")


def test_a_guards_pause_leaves_the_persons_name_and_each_ends_by_itself(running: Path) -> None:
    controlling.control(running, "pause", "ann")
    controlling.hold(running, 1, "server")
    controlling.hold(running, 1, "server")
    ann, guard = summary(running)["paused"]
    assert (ann["by"], guard["by"], guard["guard"]) == ("ann", "the guard server", "server")
    assert summary(running)["paused_by"] == "ann" and summary(running)["paused_at"] == ann["t"]
    answer = controlling.control(running, "go-on", "ann", [[ann["by"], ann["t"]]])
    assert (answer["lifted"], answer["held"], answer["already"]) == ([ann], [guard], False)
    assert summary(running)["paused"] == [guard] and summary(running)["paused_by"] == "the guard server"
    again = controlling.control(running, "go-on", "ann", [[ann["by"], ann["t"]]])
    assert (again["already"], again["held"]) == (True, [guard]), "asked again over a broken link, it ends no more than it meant"
    assert controlling.control(running, "go-on", "ann")["lifted"] == [guard]
    assert summary(running)["paused"] == []


def test_a_person_may_pause_what_a_guard_holds_and_it_stays_paused_when_the_guards_hold_ends(running: Path) -> None:
    controlling.hold(running, 1, "clock")
    assert controlling.control(running, "pause", "bob")["already"] is False
    guard, bob = summary(running)["paused"]
    assert controlling.control(running, "go-on", "ann", [[guard["by"], guard["t"]]])["held"] == [bob]
    assert summary(running)["paused_by"] == "bob"


def test_a_pause_that_came_after_the_asker_had_looked_is_not_ended(running: Path) -> None:
    controlling.hold(running, 1, "clock")
    seen = [[hold["by"], hold["t"]] for hold in summary(running)["paused"]]
    controlling.hold(running, 1, "server")
    assert [hold["guard"] for hold in controlling.control(running, "go-on", "ann", seen)["held"]] == ["server"]


@pytest.mark.parametrize("lift", ["ann", [7], [["ann"]], [["ann", "noon"]]])
def test_what_names_no_pause_is_refused(running: Path, lift: Any) -> None:
    controlling.control(running, "pause", "ann")
    with pytest.raises(VerbError, match="names no pauses"):
        controlling.control(running, "go-on", "ann", lift)
    assert summary(running)["paused_by"] == "ann"


def test_holds_that_come_at_the_same_moment_all_stand(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So many writes, each put down on a slow disk, may take longer than a guard waits for one.
    monkeypatch.setattr(controlling, "_GUARD_WAIT_S", 60.0)
    guards = [f"guard-{number}" for number in range(12)]
    with multiprocessing.get_context("fork").Pool(len(guards)) as pool:
        pool.starmap(controlling.hold, [(running, 1, guard) for guard in guards], chunksize=1)
    assert sorted(hold["guard"] for hold in summary(running)["paused"]) == sorted(guards)


def test_a_guards_hold_waits_for_no_lock_that_a_dead_writer_left(running: Path) -> None:
    (running / ".control.json.lock").mkdir()
    controlling.hold(running, 1, "clock")
    assert summary(running)["paused_by"] == "the guard clock"


def test_a_pause_of_an_earlier_attempt_does_not_hold_the_next_one(running: Path) -> None:
    (running / "control.json").write_text(json.dumps({"v": 1, "attempt": 7, "pause": {"by": "ann", "t": 1.0}}))
    assert state.control_request(running, 1) == {}
    assert summary(running)["paused_by"] is None


@pytest.mark.parametrize("action", controlling.ACTIONS)
def test_a_run_that_has_ended_is_not_asked(workspace: Path, action: str) -> None:
    run_dir = Path(launching.launch(workspace, "done", "v = 1\n", plan("raise SystemExit(0)"))["run_dir"])
    wait_for(lambda: summary(run_dir)["state"] == "finished")
    with pytest.raises(VerbError, match="done is not running: finished"):
        controlling.control(run_dir, action)
    assert not (run_dir / "control.json").exists()


def test_a_wrong_action_and_a_run_that_is_not_there_are_refused(running: Path) -> None:
    with pytest.raises(VerbError, match="'hurry' is nothing that a run can be asked for"):
        controlling.control(running, "hurry")
    with pytest.raises(VerbError, match="There is no run"):
        controlling.control(running.parent / "nobody", "pause")


def test_the_verb_answers_under_the_oldest_python(running: Path, channel: Channel) -> None:
    where = {"workspace": str(running.parent.parent), "run_id": "r"}
    assert channel.result("control", action="pause", actor="ann", **where)["already"] is False
    assert channel.result("list", workspace=where["workspace"])["runs"][0]["paused_by"] == "ann"
