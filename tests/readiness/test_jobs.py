"""The deep check as a detached job, asked for over the helper channel under the oldest Python that is promised."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import jobs, proctable, rundir
from tests.readiness.support import gone, package, tree, wants
from tests.runner.support import RUNNER, Channel, old_python, wait_for


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "ws"
    yield place
    for folder in place.glob("checks/*"):

        def left(folder: Path = folder) -> list[proctable.Process]:
            return jobs.bearers(folder)

        proctable.end_all(left, grace_s=0)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A module that hangs, and a child of it that would outlive it."""
    body = "import pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    body += f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\ntime.sleep(600)\n"
    return package(tmp_path / "site", "sleeper", body)


@pytest.fixture
def channel(site: Path) -> Iterator[Channel]:
    opened = Channel(old_python(), "-I", "-S", str(RUNNER), env={"PYTHONPATH": str(site)})
    yield opened
    if opened.process.poll() is None:
        opened.close()


def read_all(channel: Channel, workspace: Path, check_id: str) -> dict[str, Any]:
    """Everything that the check says, until it has ended, read in whatever pieces it comes."""
    lines: list[str] = []
    offset = 0

    def done() -> dict[str, Any] | None:
        nonlocal offset
        answer = channel.result("check_read", workspace=str(workspace), check_id=check_id, offset=offset)
        lines.extend(answer["lines"])
        offset = answer["offset"]
        return answer if answer["done"] else None

    answer = wait_for(done)
    return {**answer, "lines": [json.loads(line) for line in lines]}


def hanging(workspace: Path) -> dict[str, Any]:
    return wants(workspace, sections=["deep.imports.worker", "deep.disk"], modules={"worker": ["sleeper"]})


def test_a_check_goes_on_when_the_channel_that_asked_for_it_is_gone(channel: Channel, workspace: Path) -> None:
    asked = wants(workspace, sections=["deep.imports.worker", "deep.disk"], modules={"worker": ["json"]})
    first = channel.result("check_start", workspace=str(workspace), wants=asked, check_id="c-1")
    assert first == {"check_id": "c-1", "already": False}
    channel.close()
    again = Channel(old_python(), "-I", "-S", str(RUNNER))
    try:
        assert again.result("check_start", workspace=str(workspace), wants=asked, check_id="c-1")["already"]
        ended = read_all(again, workspace, "c-1")
        told = [line.get("doing") or line["section"] for line in ended["lines"]]
        assert told == ["deep.imports.worker", "deep.imports.worker", "deep.disk", "deep.disk"], ended
        assert [line["facts"]["packages"][0]["ok"] for line in ended["lines"] if "packages" in line.get("facts", {})] == [True]
        assert (ended["exit"]["code"], ended["exit"]["error"]) == (0, "")
        assert not (workspace / "checks" / "c-1" / "scratch").exists()
    finally:
        again.close()


def test_one_check_at_a_time_and_a_stop_ends_all_that_it_started(channel: Channel, workspace: Path, tmp_path: Path) -> None:
    channel.result("check_start", workspace=str(workspace), wants=hanging(workspace), check_id="c-1")
    wait_for((tmp_path / "child").exists)
    child = int(wait_for((tmp_path / "child").read_text))
    refused = channel.ask("check_start", workspace=str(workspace), wants=hanging(workspace), check_id="c-2")
    assert (refused["error"]["code"], "c-1" in refused["error"]["text"]) == ("busy", True)
    assert channel.result("check_stop", workspace=str(workspace), check_id="c-1")["survivors"] == []
    assert gone(child), "in a session of its own, and still ended"
    ended = read_all(channel, workspace, "c-1")
    assert ended["exit"]["stopped"] and ended["lines"][0]["doing"] == "deep.imports.worker"
    assert channel.result("check_stop", workspace=str(workspace), check_id="c-1")["already"]
    assert not (workspace / "checks" / "c-1" / "scratch").exists(), "what the probes needed is gone"


def test_a_watcher_that_was_killed_is_an_end_that_says_so(channel: Channel, workspace: Path, tmp_path: Path) -> None:
    channel.result("check_start", workspace=str(workspace), wants=hanging(workspace), check_id="c-1")
    folder = workspace / "checks" / "c-1"
    wait_for((tmp_path / "child").exists)
    os.kill(rundir.read_json(folder / "started.json")["pid"], signal.SIGKILL)
    ended = read_all(channel, workspace, "c-1")
    assert "without a word" in ended["exit"]["error"]
    channel.result("check_stop", workspace=str(workspace), check_id="c-1")
    assert jobs.bearers(folder) == []


def test_old_checks_are_pruned_and_a_live_one_is_not(workspace: Path) -> None:
    for number in range(jobs.KEEP + 3):
        jobs.start(workspace, f"quick-{number}", "quick", ["/bin/true"], files={}, limit_s=10)
        folder = workspace / "checks" / f"quick-{number}"
        # Its watcher writes the end down before it is gone itself, and what is not gone is not pruned.
        wait_for(lambda folder=folder: (folder / "exit.json").exists() and not jobs.bearers(folder))
    kept = sorted(path.name for path in (workspace / "checks").iterdir() if path.is_dir())
    assert kept == [f"quick-{number}" for number in range(3, jobs.KEEP + 3)]


def test_a_job_past_its_limit_is_stopped_and_told(workspace: Path) -> None:
    jobs.start(workspace, "long", "quick", ["/bin/sleep", "600"], files={}, limit_s=0.3)
    wait_for(lambda: (workspace / "checks" / "long" / "exit.json").exists())
    ended = jobs.read(workspace, "long")
    assert ended["done"] and ended["exit"]["timed_out"] and "had not ended" in ended["exit"]["error"]


def test_a_command_that_is_not_there_ends_with_its_name(workspace: Path) -> None:
    jobs.start(workspace, "none", "quick", ["/no/such/python"], files={}, limit_s=10)
    ended = wait_for(lambda: jobs.read(workspace, "none") if jobs.read(workspace, "none")["done"] else None)
    assert "/no/such/python cannot be started" in ended["exit"]["error"]


def test_an_id_that_leads_out_of_the_workspace_is_refused(channel: Channel, workspace: Path, tmp_path: Path) -> None:
    for name in ("../x", "", "A B", "x/y"):
        reply = channel.ask("check_read", workspace=str(workspace), check_id=name)
        assert reply["error"]["code"] == "usage", reply
    (workspace / "checks").mkdir(parents=True)
    (workspace / "checks" / "link").symlink_to(tmp_path)
    assert channel.ask("check_read", workspace=str(workspace), check_id="link")["error"]["code"] == "usage"
    assert channel.ask("check_read", workspace=str(workspace), check_id="never")["error"]["code"] == "not_found"
    shutil.rmtree(workspace)
    assert tree(tmp_path / "site") != []
