"""A second operator sees who watches, who did what, and what has happened since the last look."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.records import Probe, Since, Watcher
from eagle3.runner import rundir, since, verbs, watchers
from eagle3.runner.launch import launch
from eagle3.runner.stop import stop
from tests.runner.support import (
    RUNNER,
    Channel,
    kill_supervisor,
    old_python,
    shell,
    started,
    state_is,
    wait_end,
    wait_for,
)


@pytest.fixture
def helper() -> Iterator[Callable[[], Channel]]:
    made: list[Channel] = []

    def make() -> Channel:
        made.append(Channel(old_python(), "-I", "-S", str(RUNNER)))
        return made[-1]

    yield make
    for channel in made:
        if channel.process.poll() is None:
            channel.close()


def test_whoever_said_a_name_is_seen_while_the_helper_lives(workspace: Path, helper: Callable[[], Channel]) -> None:
    workspace.mkdir()
    place = {"workspace": str(workspace)}
    ann, bob, nobody = helper(), helper(), helper()
    ann.result("hello", actor="ann", watching="r")
    assert ann.result("list", **place)["watchers"][0]["actor"] == "ann"
    bob.result("hello", actor="bob", **place)
    nobody.result("hello")
    found = [Watcher.model_validate(w) for w in nobody.result("list", **place)["watchers"]]
    assert [(w.actor, w.watching) for w in found] == [("ann", "r"), ("bob", "")], (
        "the longest first; who said no name is not told"
    )
    assert all(w.last_seen_age_s is not None and w.since <= time.time() for w in found)
    assert [w.actor for w in Probe.model_validate(nobody.result("probe", **place)).watchers] == ["ann", "bob"]
    ann.result("hello", actor="ann", watching="q")
    assert nobody.result("list", **place)["watchers"][0]["watching"] == "q"
    assert bob.close() == 0
    assert [w["actor"] for w in nobody.result("list", **place)["watchers"]] == ["ann"]
    os.kill(ann.process.pid, signal.SIGKILL)
    ann.process.wait()
    assert nobody.result("list", **place)["watchers"] == []
    assert list((workspace / "watchers").iterdir()) == [], "entries of the dead are removed"


def test_to_watch_makes_no_workspace_and_moves_with_the_question(tmp_path: Path, helper: Callable[[], Channel]) -> None:
    ann = helper()
    ann.result("hello", actor="ann", workspace=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ann.result("list", workspace=str(tmp_path / name))
    assert [len(list((tmp_path / name / "watchers").iterdir())) for name in ("a", "b")] == [0, 1]
    mode = (tmp_path / "b/watchers").stat().st_mode & 0o777
    assert mode == 0o700


def test_an_entry_is_believed_as_long_as_its_process_or_for_another_machine_its_word(workspace: Path) -> None:
    folder = workspace / "watchers"
    folder.mkdir(parents=True)
    me = watchers.identity.of(os.getpid())
    entries: dict[str, dict[str, Any]] = {
        "alive": me,
        "reused": {**me, "start_ticks": 1},
        "reboot": {**me, "boot_id": "another"},
        "elsewhere": {**me, "host": "elsewhere", "boot_id": "another"},
        "silent": {**me, "host": "elsewhere", "t": 1000.0 - watchers.FOREIGN_S},
    }
    for name, identity in entries.items():
        rundir.write_json(folder / f"{name}.json", {"actor": name, "since": 1.0, "t": 990.0, **identity})
    (folder / "broken.json").write_text("{")
    found = watchers.watchers(workspace, 1000.0)
    assert {(w["actor"], w["last_seen_age_s"]) for w in found} == {("alive", 10.0), ("elsewhere", 10.0)}
    assert sorted(path.name for path in folder.iterdir()) == ["alive.json", "broken.json", "elsewhere.json"]


def test_who_did_what_since_a_moment_is_told_with_the_newest_last(workspace: Path) -> None:
    # A grace that no machine uses up: else the supervisor says too that it kills.
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", grace_s=60), actor="ann")["run_dir"])
    other = Path(launch(workspace, "other", "", shell("exit 3"), actor="eve")["run_dir"])
    wait_end(other)
    looked = time.time()
    stop(run_dir, "now", actor="bob")
    wait_end(run_dir)
    launch(workspace, "r", "", shell("exec sleep 600"), resume=True, actor="carl")
    found = Since.model_validate(verbs.handle("since", {"workspace": str(workspace), "t": looked}))
    told = [(h.run_id, h.kind, h.actor) for h in found.happenings]
    assert told == [
        ("r", "stop_asked", "bob"), ("r", "stop", "bob"), ("r", "attempt_ended", "bob"), ("r", "attempt_started", "carl"),
    ]  # fmt: skip
    assert [h.t for h in found.happenings] == sorted(h.t for h in found.happenings) and found.left_off == 0
    assert [(run["run_id"], run["state"]) for run in found.runs] == [("r", "running")]
    everything = Since.model_validate(verbs.handle("since", {"workspace": str(workspace), "t": 0}))
    words = {(h.run_id, h.kind): h for h in everything.happenings}
    assert words["other", "attempt_ended"].level == "error" and "exit code 3" in words["other", "attempt_ended"].text
    assert words["r", "created"].actor == "ann" and len(everything.runs) == 2


def test_what_no_event_tells_is_told_by_the_state(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"), actor="ann")["run_dir"])
    looked = time.time()
    kill_supervisor(run_dir)
    [run] = since.since(workspace, looked)["runs"]
    assert (run["state"], run["happenings"]) == ("unsupervised", 0)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))


def test_many_happenings_are_cut_to_the_newest_and_one_broken_run_hides_none(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 0"), actor="ann")["run_dir"])
    wait_end(run_dir)
    future = time.time() + 100
    with (run_dir / "events.jsonl").open("a") as file:
        for number in range(400):
            file.write(json.dumps({"t": future + number, "kind": "k", "text": f"{number} " + "x" * 500}) + "\n")
    broken = workspace / "runs/broken"
    broken.mkdir()
    (broken / "launch.json").write_text('{"label": 5}')
    found = since.since(workspace, 0)
    assert len(found["happenings"]) <= since.MAX_HAPPENINGS and found["happenings"][-1]["text"].startswith("399 ")
    assert all(len(h["text"]) <= since.MAX_TEXT for h in found["happenings"])
    few = since.since(workspace, 0, limit=5)
    assert len(few["happenings"]) == 5 and few["left_off"] == len(found["happenings"]) + found["left_off"] - 5
    assert since.since(workspace, future + 1000)["happenings"] == []
