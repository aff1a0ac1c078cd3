"""A run that works can be asked to pause, to go on and to save; one that does not is not asked."""

from __future__ import annotations

import json
import time
from pathlib import Path

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
