"""What is said about a run is derived from its files and the process table, each time anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.records import RunSummary
from eagle3.runner import derive, identity, rundir, state, verbs
from eagle3.runner.launch import launch
from tests.runner.support import kill_supervisor, shell, started, state_is, summary, wait_end, wait_for

HOUR_S = 3600.0


@pytest.fixture
def running(workspace: Path) -> Path:
    return Path(launch(workspace, "r", "", shell("exec sleep 600"))["run_dir"])


def rewrite_started(run_dir: Path, **changes: Any) -> None:
    rundir.write_json(run_dir / "attempts/1/started.json", {**started(run_dir), **changes})


def test_the_summary_is_what_the_console_reads(running: Path) -> None:
    found = RunSummary.model_validate(summary(running))
    assert (found.run_id, found.state, found.attempt, found.run_dir) == ("r", "running", 1, str(running))
    assert set(summary(running)) == set(RunSummary.model_fields)


@pytest.mark.parametrize(
    ("script", "word", "code", "number"),
    [
        ("exit 0", "finished", 0, None),
        ("exit 75", "stopped", 75, None),
        ("exit 2", "failed", 2, None),
        ("kill -9 $$", "failed", None, 9),
    ],
)
def test_an_end_is_told_by_its_exit_record(workspace: Path, script: str, word: str, code: int | None, number: int | None) -> None:
    run_dir = Path(launch(workspace, "r", "", shell(script))["run_dir"])
    wait_end(run_dir)
    found = summary(run_dir)
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (word, code, number)
    assert found["ended_at"] >= found["started_at"] >= found["created_at"]


def test_a_reused_pid_is_not_taken_for_the_worker(running: Path) -> None:
    worker = started(running)
    kill_supervisor(running)
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(state_is(running, "unknown"))
    # The same pid, alive, started at another time (by a tick, the least that can be told apart): as after a reuse.
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        rewrite_started(running, pid=stranger.pid, start_ticks=identity.of(stranger.pid)["start_ticks"] - 1)
        assert summary(running)["state"] == "unknown"
        assert "resume" in summary(running)["state_text"]
    finally:
        stranger.kill()
        stranger.wait()


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: (found := identity.stat(child.pid)) is not None and found.state == "Z")
    assert not identity.alive(identity.of(child.pid))
    child.wait()


def test_a_process_with_brackets_and_blanks_in_its_name_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "600"])
    try:
        wait_for(lambda: "a) R 1" in Path(f"/proc/{child.pid}/comm").read_text())
        found = identity.stat(child.pid)
        assert found is not None and found.ppid == os.getpid() and identity.alive(identity.of(child.pid))
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("change", "words"), [({"boot_id": "another"}, "machine"), ({"pid1_start_ticks": -1}, "container")])
def test_a_run_from_before_a_restart_is_lost_and_can_be_resumed(running: Path, change: dict[str, Any], words: str) -> None:
    supervisor = started(running)["supervisor"]
    rewrite_started(running, **change, supervisor={**supervisor, **change})
    found = summary(running)
    assert found["state"] == "lost" and words in found["state_text"] and "resume" in found["state_text"]


def test_a_run_on_another_host_is_judged_by_its_heartbeat(running: Path) -> None:
    wait_for(lambda: (running / "attempts/1/heartbeat.json").exists())
    rewrite_started(running, host="elsewhere", boot_id="another")
    assert summary(running)["state"] == "running"
    assert state.summary(running, time.time() + HOUR_S)["state"] == "lost"


def test_silence_past_the_announced_quiet_is_a_stall(running: Path) -> None:
    now = time.time()
    progress = {
        "v": 1,
        "attempt": 1,
        "stage": "train",
        "done": 1,
        "t": now,
        "quiet_until": now + HOUR_S,
        "reason": "a model loads",
    }
    rundir.write_json(running / "progress.json", progress)
    found = state.summary(running, now + HOUR_S - 1)
    assert (found["state"], found["state_text"]) == ("running", "a model loads")
    assert state.summary(running, now + HOUR_S + 1)["state"] == "stalled"
    rundir.write_json(running / "progress.json", {**progress, "quiet_until": None})
    assert state.summary(running, now + derive.QUIET_AT_LEAST_S - 1)["state"] == "running"
    assert state.summary(running, now + derive.QUIET_AT_LEAST_S + 1)["state"] == "stalled"


def test_slow_rows_allow_a_longer_silence_and_only_rows_of_the_stage_and_attempt_count(running: Path) -> None:
    now = time.time()
    rundir.write_json(running / "progress.json", {"v": 1, "attempt": 1, "stage": "train", "t": now - 600})
    rows: list[dict[str, Any]] = [{"attempt": 0, "stage": "train", "t": now + 9 * HOUR_S}]
    rows += [{"attempt": 1, "stage": "regenerate", "t": now - 600 + i} for i in range(5)]
    rows += [{"attempt": 1, "stage": "train", "t": now - 500 + 100 * i} for i in range(6)]
    with (running / "metrics.jsonl").open("w") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows) + "half a l")
    assert summary(running)["last_row_age_s"] < 60
    assert state.summary(running, now + 999)["state"] == "running"
    assert state.summary(running, now + 1001)["state"] == "stalled"


def test_progress_of_an_earlier_attempt_keeps_nobody_quiet(running: Path) -> None:
    now = time.time()
    rundir.write_json(
        running / "progress.json", {"v": 1, "attempt": 0, "stage": "train", "t": now, "quiet_until": now + 9 * HOUR_S}
    )
    assert state.summary(running, now + HOUR_S)["state"] == "stalled"
    assert summary(running)["progress"] is None, "nor does it stand for where this attempt is"
    rundir.write_json(running / "progress.json", {"v": 1, "attempt": 1, "stage": "prepare", "t": now})
    assert summary(running)["progress"]["stage"] == "prepare"


def test_finished_stages_come_with_their_seconds_in_order(running: Path) -> None:
    (running / "stages").mkdir()
    rundir.write_json(running / "stages/train.json", {"stage": "train", "seconds": 7.5, "t": 2})
    rundir.write_json(running / "stages/prepare.json", {"stage": "prepare", "seconds": 1, "t": 1})
    assert list(summary(running)["stages"].items()) == [("prepare", 1.0), ("train", 7.5)]


def test_a_run_directory_in_ruins_is_still_described(workspace: Path) -> None:
    run_dir = workspace / "runs/r"
    (run_dir / "attempts/1").mkdir(parents=True)
    for name in ("launch.json", "progress.json", "attempts/1/starting.json", "attempts/1/heartbeat.json", "stop.json"):
        (run_dir / name).write_bytes(b"\xff{[")
    (run_dir / "attempts/x").touch()
    assert summary(run_dir)["state"] == "starting"
    assert state.summary(run_dir, time.time() + HOUR_S)["state"] == "unknown"
    (run_dir / "launch.json").write_text('{"label": 5}')
    [described] = verbs.handle("list", {"workspace": str(workspace)})["runs"]
    assert (described["run_id"], described["state"]) == ("r", "unknown") and RunSummary.model_validate(described)


def test_the_heartbeat_tells_what_the_run_uses(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("sleep 600 & exec sleep 600", heartbeat_s=0.1))["run_dir"])

    def beat() -> dict[str, Any] | None:
        found: dict[str, Any] = rundir.read_object(run_dir / "attempts/1/heartbeat.json")
        return found if len(found.get("processes", [])) >= 2 else None

    found = wait_for(beat)
    assert found is not None
    assert started(run_dir)["pid"] in [pid for pid, _ in found["processes"]]
    assert found["rss_bytes"] > 0 and found["disk_free_bytes"] > 0 and found["cpu_s"] >= 0 and found["gpu_bytes"] is None
