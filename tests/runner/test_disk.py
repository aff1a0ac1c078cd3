"""A disk that is full or cannot be written is said in one sentence; nothing half-made stays, and an end is still recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import preflight
from eagle3.runner.errors import VerbError
from tests.runner.support import ROOT
from tests.support.tmpfs import on_tmpfs

PRELUDE = """
import json, os, sys, time
from pathlib import Path
from eagle3.runner import rundir, state
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.stop import stop
from tests.runner.support import end_everything, shell, wait_end, wait_for
disk = Path(sys.argv[1])

def fill():
    with (disk / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return

def refused(**more):
    try:
        launch(disk / "ws", "r", more.pop("spec", ""), shell("true"), **more)
    except VerbError as error:
        return {**error.as_dict(), "left": sorted(str(p.relative_to(disk)) for p in disk.rglob("*"))}
"""


def on_disk(tmp_path: Path, options: str, script: str, *, read_only: bool = False) -> dict[str, Any]:
    """What ``script`` prints, run with a tmpfs of its own."""
    disk = tmp_path / "disk"
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-c", PRELUDE + script, str(disk)]
    child = on_tmpfs(disk, options, command, read_only=read_only)
    assert child.returncode == 0, child.stderr.decode()
    found: dict[str, Any] = json.loads(child.stdout)
    return found


@pytest.mark.parametrize(("options", "words"), [("size=2m", "is full"), ("size=32m,nr_inodes=20", "free inodes")])
def test_a_launch_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path, options: str, words: str) -> None:
    found = on_disk(tmp_path, options, "print(json.dumps(refused()))")
    assert found["code"] == "disk" and words in found["text"] and found["remedy"] and found["left"] == []


def test_a_disk_that_fills_while_the_run_is_made_leaves_nothing(tmp_path: Path) -> None:
    found = on_disk(tmp_path, "size=12m", "print(json.dumps(refused(spec='#' * (16 << 20))))")
    assert found["code"] == "disk" and "disk is full" in found["text"] and found["left"] in ([], ["ws"])


def test_a_read_only_workspace_is_refused(tmp_path: Path) -> None:
    found = on_disk(tmp_path, "size=32m", "print(json.dumps(refused()))", read_only=True)
    assert found["code"] == "disk" and "read-only" in found["text"] and found["left"] == []


def test_an_end_is_recorded_on_a_full_disk(tmp_path: Path) -> None:
    script = """
run_dir = Path(launch(disk / "ws", "r", "", shell("while [ ! -e go ]; do sleep 0.05; done; exit 3"))["run_dir"])
(run_dir / "ready").touch()
os.link(run_dir / "ready", disk / "spare")
fill()
os.rename(disk / "spare", run_dir / "go")
ended = wait_end(run_dir)
try:
    rundir.write_json(run_dir / "launch.json", {"pad": "x" * 9000})
    error = ""
except OSError as caught:
    error = caught.strerror
print(json.dumps({"ended": ended, "error": error, "state": state.summary(run_dir, time.time())["state"],
                  "kept": "argv" in rundir.read_object(run_dir / "launch.json"), "left": [p.name for p in run_dir.iterdir()]}))
end_everything(disk / "ws")
"""
    found = on_disk(tmp_path, "size=32m", script)
    assert (found["ended"]["code"], found["ended"]["signal"], found["state"]) == (3, None, "failed")
    assert found["error"] == "No space left on device" and found["kept"]
    assert not [name for name in found["left"] if name.endswith(".tmp")]


def test_a_full_disk_does_not_keep_a_run_from_being_stopped(tmp_path: Path) -> None:
    script = """
run_dir = Path(launch(disk / "ws", "r", "", shell("exec sleep 600"))["run_dir"])
fill()
answer = stop(run_dir, "now")
ended = wait_end(run_dir)
print(json.dumps({"ended": ended, "answer": answer}))
end_everything(disk / "ws")
"""
    found = on_disk(tmp_path, "size=32m", script)
    assert found["ended"]["stopped"] and found["ended"]["signal"] == 15


def test_a_guard_that_ends_a_silent_run_ends_it_on_a_full_disk_too(tmp_path: Path) -> None:
    script = """
# Where the worker tells how far it is lies outside the disk, so that its silence begins when there is no room any more.
progress = disk.parent / "progress.json"
rundir.write_json(progress, {"attempt": 1, "t": time.time(), "quiet_until": time.time() + 3600})
script = "ln -s ../../../../progress.json .; echo up; exec sleep 600"
plan = shell(script, heartbeat_s=0.1, stall={"response": "stop", "after_s": 3})
run_dir = Path(launch(disk / "ws", "r", "", plan)["run_dir"])
log = run_dir / "attempts/1/run.log"
wait_for(lambda: "up" in log.read_text())
# Until a heartbeat has found no room: one that was just being put in another's place may give a block back.
wait_for(lambda: fill() or "the heartbeat could not be written" in log.read_text())
rundir.write_json(progress, {"attempt": 1, "t": 0})
ended = wait_end(run_dir)
print(json.dumps({"ended": ended, "order": (run_dir / "stop.json").exists()}))
end_everything(disk / "ws")
"""
    found = on_disk(tmp_path, "size=32m", script)
    assert (found["ended"]["stopped"], found["ended"]["by"]) == (True, "the guard stall")
    assert not found["order"], "there was no room for the order"


def test_a_disk_with_less_than_a_launch_needs_is_said_to_be_full(tmp_path: Path) -> None:
    with pytest.raises(VerbError, match="is full"):
        preflight.check_disk(tmp_path, need_bytes=1 << 62)


def test_a_workspace_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VerbError, match="is a file"):
        preflight.check_disk(tmp_path / "file" / "ws")
