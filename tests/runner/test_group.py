"""A run of a group: another member finds, reads and stops it; nobody else does; a group that cannot be is refused first."""

from __future__ import annotations

import grp
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from tests.runner.support import ROOT, end_everything, kill_supervisor, shell, started, summary, wait_end, wait_for

GROUP = "users"
OTHER_USER = 65534

AS_OTHER = """
import codecs, grp, json, os, pwd, sys
sys.path.insert(0, sys.argv[1])
from eagle3.runner import verbs
from eagle3.runner.errors import VerbError
codecs.lookup("ascii")  # while the interpreter's own folder can still be entered
verb, args, groups = json.loads(sys.argv[2])
os.setgroups([grp.getgrnam(name).gr_gid for name in groups])
os.setgid(65534)
os.setuid(65534)
os.umask(0o077)
try:
    print(json.dumps(verbs.handle(verb, args)))
except VerbError as error:
    print(json.dumps({"error": error.as_dict()}))
"""


def as_other(verb: str, groups: tuple[str, ...] = (GROUP,), **args: Any) -> dict[str, Any]:
    """What another user of this machine is answered. Skips, which CI counts as a failure, where this user cannot be one."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as a second user")
    command = [sys.executable, "-I", "-S", "-c", AS_OTHER, str(ROOT), json.dumps([verb, args, groups])]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout)
    return found


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="eagle3-group-"))
    folder.chmod(0o755)
    yield folder
    end_everything(folder / "ws")
    shutil.rmtree(folder)


@pytest.fixture
def run_dir(shared: Path) -> Path:
    script = "umask > umask; mkdir -p made/deep; touch made/deep/file; echo ready > ready; exec sleep 600"
    # No second heartbeat: its temporary file would come and go under whoever lists the run.
    answer = launch(shared / "ws", "r", "", shell(script, group=GROUP, heartbeat_s=600), actor="ann")
    found = Path(answer["run_dir"])
    wait_for(lambda: (found / "ready").exists() and (found / "attempts/1/heartbeat.json").exists())
    return found


def test_every_folder_is_the_groups_and_every_file_too(run_dir: Path) -> None:
    assert (run_dir / "umask").read_text() == "0007\n"
    group = grp.getgrnam(GROUP).gr_gid
    for path in [run_dir.parent.parent, run_dir.parent, run_dir, *run_dir.rglob("*")]:
        found = path.stat()
        kind = 0o2770 if path.is_dir() else 0o660
        assert (found.st_gid, oct(found.st_mode & 0o7777)) == (group, oct(kind)), path


def test_another_member_lists_reads_and_stops_it_and_is_named(run_dir: Path) -> None:
    place = {"workspace": str(run_dir.parent.parent)}
    [listed] = as_other("list", **place)["runs"]
    assert (listed["run_id"], listed["state"], listed["actor"]) == ("r", "running", "ann")
    read = as_other("read", **place, run_id="r", files=[{"name": "attempts/1/started.json", "whole": True}])
    assert json.loads(read["files"]["attempts/1/started.json"]["text"])["pid"] == started(run_dir)["pid"]
    assert as_other("stop", **place, run_id="r", actor="bob")["state"] == "running"
    wait_end(run_dir)
    assert summary(run_dir)["state_text"] == "stopped by bob"
    rows = as_other("since", **place, t=0)["happenings"]
    assert [(row["kind"], row["actor"]) for row in rows if row["actor"] != "supervisor"] == [
        ("created", "ann"), ("attempt_started", "ann"), ("stop_asked", "bob"), ("stop", "bob"), ("attempt_ended", "bob"),
    ]  # fmt: skip


def test_nobody_else_sees_it(run_dir: Path) -> None:
    place = {"workspace": str(run_dir.parent.parent)}
    for verb in ("list", "probe"):
        assert as_other(verb, groups=(), **place)["error"]["code"] == "permission"
    assert as_other("stop", groups=(), **place, run_id="r")["error"]["code"] in ("permission", "not_found")
    assert summary(run_dir)["state"] == "running"


def test_what_only_its_owner_can_end_is_said(run_dir: Path) -> None:
    kill_supervisor(run_dir)
    error = as_other("stop", workspace=str(run_dir.parent.parent), run_id="r", actor="bob")["error"]
    assert error["code"] == "permission" and "belong to root" in error["text"] and "root" in error["remedy"]
    assert rundir.read_object(run_dir / "stop.json") == {}


def test_a_group_without_the_launcher_is_refused_before_anything(shared: Path) -> None:
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    answer = as_other("launch", groups=(), workspace=str(shared / "open/ws"), run_id="r", launch=shell("true", group=GROUP))
    assert answer["error"]["code"] == "usage" and "is no member of the group 'users'" in answer["error"]["text"]
    assert list((shared / "open").iterdir()) == []


def test_a_group_that_is_not_there_is_refused_before_anything(shared: Path) -> None:
    with pytest.raises(VerbError, match="no group 'no-such-group'"):
        launch(shared / "ws", "q", "", shell("true", group="no-such-group"))
    assert not (shared / "ws").exists()


def test_a_workspace_that_the_group_cannot_reach_is_refused_before_anything(shared: Path) -> None:
    (shared / "closed").mkdir(mode=0o700)
    with pytest.raises(VerbError, match=r"cannot enter .*closed") as caught:
        launch(shared / "closed/ws", "r", "", shell("true", group=GROUP))
    assert caught.value.code == "permission" and list((shared / "closed").iterdir()) == []
