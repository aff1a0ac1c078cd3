"""A run that stands still shows where: the stacks of its processes are in its log, and nothing dies of the question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3.journal import Journal
from eagle3.runner import proctable, ranks, rundir, stack_dump, verbs
from eagle3.runner.errors import VerbError
from eagle3.runner.heartbeat import Heartbeat
from eagle3.runner.launch import launch
from eagle3.runner.watch import Watch
from tests.runner.support import ROOT, Channel, events, kill_supervisor, shell, started, state_is, wait_end, wait_for
from tests.support.guards import the_guard

RANK = """
import time
from eagle3.stacks import register
register()
def waits_for_the_others():
    time.sleep(600)
waits_for_the_others()
"""
TREE = f"""
import os, subprocess, sys, time
for rank in ("0", "1"):
    subprocess.Popen([sys.executable, "-S", "-c", {RANK!r}], env={{**os.environ, "RANK": rank}})
subprocess.Popen(["sleep", "600"])
def leads_the_ranks():
    time.sleep(600)
from eagle3.stacks import register
register()
leads_the_ranks()
"""


def tree(**more: Any) -> dict[str, Any]:
    return {"argv": [sys.executable, "-S", "-c", TREE], "pythonpath": str(ROOT), "grace_s": 0.5, **more}


@pytest.fixture
def running(workspace: Path) -> Path:
    """A leader, two ranks and a program that knows nothing of signals."""
    run_dir = Path(launch(workspace, "r", "", tree())["run_dir"])
    wait_for(lambda: sum(stack_dump.catches(p.pid) for p in worker_processes(run_dir)) == 3)
    return run_dir


def worker_processes(run_dir: Path) -> list[Any]:
    own = [started(run_dir)["supervisor"]["pid"]]
    return [p for p in proctable.marked(str(run_dir), 1) if p.pid not in own]


def log_of(run_dir: Path) -> str:
    return (run_dir / "attempts/1/run.log").read_text()


def test_a_console_can_ask_for_the_stacks(running: Path, channel: Channel) -> None:
    before = {p.pid for p in worker_processes(running)}
    answer = channel.result("dump", workspace=str(running.parent.parent), run_id="r", actor="ann")
    assert [one["rank"] for one in answer["dumped"]] == [None, 0, 1] or {one["rank"] for one in answer["dumped"]} == {None, 0, 1}
    assert answer["silent"] == [] and [one["why"] for one in answer["unable"]] == ["sleep 600 has no handler"]
    log = log_of(running)
    for rank in (0, 1):
        part = log.partition(f"stacks of rank {rank}, ")[2].partition("runner: stacks of")[0]
        assert "waits_for_the_others" in part and "asked for by ann" in part
    assert log.count("in waits_for_the_others") == 2 and log.count("in leads_the_ranks") == 1
    assert {p.pid for p in worker_processes(running)} == before, "nothing has died of it"
    [event] = events(running, "stack_dump")
    assert event["actor"] == "ann" and "rank 1" in event["text"] and "without a handler: pid" in event["text"]


def test_a_stall_leaves_the_stacks_and_names_the_slowest_rank_once(workspace: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    hooks = {"command": ["/bin/sh", "-c", f"cat >> {told}"], "on": ["stall"]}
    run_dir = Path(launch(workspace, "r", "", tree(heartbeat_s=0.1, hooks=hooks))["run_dir"])
    wait_for(lambda: sum(stack_dump.catches(p.pid) for p in worker_processes(run_dir)) == 3)
    journal = Journal(run_dir, 1, clock=lambda: time.time() - 400)
    journal.rank(0, "train", 120)
    journal.rank(1, "train", 118)
    record = started(run_dir)
    rundir.write_json(run_dir / "attempts/1/started.json", {**record, "t": time.time() - 3600})
    wait_for(lambda: events(run_dir, "stack_dump"))
    stalled = the_guard(events(run_dir), "stall")
    assert stalled["guard"]["value"] > stalled["guard"]["threshold"] == 300 and stalled["guard"]["response"] == "warn"
    assert "nothing heard for" in stalled["text"] and "slowest is rank 1: step 118 of the others' 120" in stalled["text"]
    wait_for(lambda: told.exists() and told.read_text().endswith("\n"))
    alert = json.loads(told.read_text())
    assert alert["kind"] == "stall" and "stacks of" in alert["detail"] and "slowest is rank 1" in alert["text"]
    assert log_of(run_dir).count("in waits_for_the_others") == 2
    rundir.write_json(run_dir / "attempts/1/started.json", {**record, "t": time.time()})
    wait_for(lambda: events(run_dir, "stall_over"))
    assert len(events(run_dir, "stack_dump")) == 1 and told.read_text().count('"stall"') == 1
    assert state_is(run_dir, "running")()


def test_a_silent_run_is_stopped_after_its_stacks_were_taken_where_the_spec_says_so(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", tree(heartbeat_s=0.1, stall={"response": "stop", "after_s": 90.0}))["run_dir"])
    wait_for(lambda: sum(stack_dump.catches(p.pid) for p in worker_processes(run_dir)) == 3)
    rundir.write_json(run_dir / "attempts/1/started.json", {**started(run_dir), "t": time.time() - 100})
    wait_for(lambda: (run_dir / "attempts/1/exit.json").exists())
    assert rundir.read_object(run_dir / "attempts/1/exit.json")["by"] == "the guard stall"
    kinds = [row["kind"] for row in events(run_dir)]
    assert kinds.index("guard-stall") < kinds.index("stack_dump") < kinds.index("stop") < kinds.index("attempt_ended")
    assert "in waits_for_the_others" in log_of(run_dir), "its threads were asked before it ended"
    stalled = the_guard(events(run_dir), "stall")
    assert stalled["guard"]["threshold"] == 90.0 and stalled["guard"]["response"] == "stop"
    assert "which is beyond 90 s" in stalled["text"], "the threshold is told"
    wait_for(state_is(run_dir, "stopped"))


class Watched:
    """A silent run and its watch, whose two clocks are the test's; ``told`` are the kinds of its events."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        plan = {"stall": {"response": "stop", "after_s": 90.0}}
        heartbeat = Heartbeat(run_dir, 1, every_s=10)
        self._watch = Watch(run_dir, 1, plan, {}, heartbeat, lambda kind, text, level, **more: self.told.append(kind), print)
        self._wall_s = self._steady_s = 0.0
        clocks = SimpleNamespace(time=time.time, monotonic=time.monotonic)
        found = SimpleNamespace(time=lambda: clocks.time() + self._wall_s, monotonic=lambda: clocks.monotonic() + self._steady_s)
        monkeypatch.setattr("eagle3.runner.watch.time", found)
        self.look()

    def look(self, *, wall_s: float = 0.0, steady_s: float = 0.0) -> None:
        """Look after so many seconds of each clock."""
        self._wall_s += wall_s
        self._steady_s += steady_s
        self._watch._look_for_stall()


def test_a_clock_that_jumps_or_a_machine_that_slept_is_no_stall_until_the_run_is_silent_as_long_again(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(running, monkeypatch)
    watched.look(wall_s=7200.0)
    assert watched.told == ["clock"], "its last sign looks two hours old"
    watched.look(wall_s=91.0, steady_s=91.0)
    assert watched.told == ["clock", "guard-stall"]


def test_a_stall_is_seen_though_every_look_comes_late(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(running, monkeypatch)
    for _ in range(12):
        watched.look(wall_s=50.0, steady_s=50.0)
    assert watched.told == ["clock", "guard-stall"]


def test_a_stall_is_seen_though_the_clock_was_set_back(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(running, monkeypatch)
    watched.look(wall_s=-7200.0, steady_s=10.0)
    for _ in range(9):
        watched.look(wall_s=30.0, steady_s=30.0)
    Journal(running, 1).progress("train", 1, 2, "steps")
    for _ in range(9):
        watched.look(wall_s=30.0, steady_s=30.0)
    assert watched.told == [], "it has been heard"
    for _ in range(3):
        watched.look(wall_s=30.0, steady_s=30.0)
    assert watched.told == ["guard-stall"]


def test_a_silence_that_the_spec_does_not_mind_is_no_event(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", tree(heartbeat_s=0.1, stall={"response": "off", "after_s": 0.5}))["run_dir"])
    wait_for(state_is(run_dir, "stalled"))
    wait_for((run_dir / "attempts/1/heartbeat.json").exists)
    beats = (run_dir / "attempts/1/heartbeat.json").stat().st_mtime_ns
    wait_for(lambda: (run_dir / "attempts/1/heartbeat.json").stat().st_mtime_ns > beats + 500_000_000)
    assert events(run_dir, "guard-stall") == []


def test_stacks_can_be_had_without_a_supervisor(running: Path) -> None:
    kill_supervisor(running)
    answer = verbs.handle("dump", {"workspace": str(running.parent.parent), "run_id": "r"})
    assert len(answer["dumped"]) == 3 and "in leads_the_ranks" in log_of(running)


def test_the_worker_of_every_run_answers_with_its_stacks_even_while_it_waits_for_a_file(workspace: Path) -> None:
    # It hangs where it opens its spec, as it would on a dead network disk.
    script = f'rm spec.toml; mkfifo spec.toml; exec {sys.executable} -m eagle3 work "$EAGLE3_RUN_DIR"'
    run_dir = Path(launch(workspace, "r", "", shell(script, pythonpath=str(ROOT)))["run_dir"])
    wait_for(lambda: stack_dump.catches(started(run_dir)["pid"]))

    def dumped() -> bool:
        verbs.handle("dump", {"workspace": str(workspace), "run_id": "r"})
        return "in read_spec" in log_of(run_dir)

    wait_for(dumped)


def test_a_process_that_cannot_answer_is_named_and_costs_a_bounded_wait(running: Path) -> None:
    rank = next(p.pid for p in worker_processes(running) if proctable.environment(p.pid).get("RANK") == "1")
    os.kill(rank, 19)  # SIGSTOP: it will handle the signal when it goes on
    answer = stack_dump.dump(running, 1)
    assert [one["pid"] for one in answer["silent"]] == [rank] and "state T" in answer["silent"][0]["why"]
    assert f"none from rank 1, pid {rank}" in answer["text"] and len(answer["dumped"]) == 2


def test_an_ended_run_has_no_stacks(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 0"))["run_dir"])
    wait_end(run_dir)
    with pytest.raises(VerbError, match="is finished: it has no stacks"):
        verbs.handle("dump", {"workspace": str(workspace), "run_id": "r"})


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_without_a_handler_is_told_from_one_with_one(sleeper: int) -> None:
    assert not stack_dump.catches(sleeper)
    assert not stack_dump.catches(2**22 + 1), "nor is one that is not there asked"


def test_the_slowest_rank_is_the_one_behind_or_the_one_silent_longest() -> None:
    rank = ranks.Rank
    assert ranks.slowest([]) is None and ranks.slowest([rank(0, "train", 5, 1.0)]) is None
    behind = [rank(0, "train", 9, 1.0), rank(1, "train", 8, 5.0), rank(2, "train", 9, 2.0)]
    assert ranks.slowest_text(behind, 10.0) == "slowest is rank 1: step 8 of the others' 9, last heard 5 s ago"
    equal = [rank(0, "train", 9, 3.0), rank(1, "train", 9, 1.0)]
    assert ranks.slowest_text(equal, 10.0) == "slowest is rank 1: step 9 like the others, last heard 9 s ago"


def test_ranks_of_an_earlier_attempt_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    Journal(tmp_path, 1).rank(0, "train", 5)
    Journal(tmp_path, 2).rank(1, "train", 6)
    (tmp_path / "ranks/7.json").write_text("[]")
    (tmp_path / "ranks/x.json").write_text("{}")
    assert [(r.rank, r.step) for r in ranks.read(tmp_path, 2)] == [(1, 6)]
