"""Remedies act on real processes and real files: only after a preview, only on what it showed, only on what is ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import proctable, trees
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.remedies import remedy
from tests.readiness.support import gone, tree
from tests.runner.support import end_everything, shell, state_is, wait_end, wait_for
from tests.runner.support import started as launched
from tests.support.processes import begun


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "ws"
    place.mkdir()
    yield place
    end_everything(place)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; none outlives it."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(10)


def ended_run(workspace: Path, name: str = "done") -> Path:
    launch(workspace, name, "", shell("true"))
    run_dir = workspace / "runs" / name
    wait_end(run_dir)
    # Its supervisor, which bears the run's mark too, writes the end down before it is gone itself.
    wait_for(lambda: not proctable.marked(str(run_dir), 1))
    return run_dir


def orphan(run_dir: Path, attempt: int = 1) -> subprocess.Popen[bytes]:
    """What a run leaves behind: a process that bears its mark."""
    env = {**os.environ, "EAGLE3_RUN_DIR": str(run_dir), "EAGLE3_ATTEMPT": str(attempt), "EAGLE3_RUN_ID": run_dir.name}
    return begun(subprocess.Popen(["sleep", "600"], env=env))


def refused(workspace: Path, action: str, args: dict[str, Any], **more: Any) -> VerbError:
    with pytest.raises(VerbError) as caught:
        remedy(workspace, action, args, **more)
    return caught.value


# -- free_gpu


def test_an_orphan_of_an_ended_run_is_shown_then_ended(workspace: Path, started: list[Any]) -> None:
    run_dir = ended_run(workspace)
    started.append(orphan(run_dir))
    shown = remedy(workspace, "free_gpu", {})
    assert [(item["pid"], item["owner"]) for item in shown["items"]] == [(started[0].pid, "run done")]
    assert started[0].poll() is None, "a preview changes nothing"
    done = remedy(workspace, "free_gpu", {}, preview=False, token=shown["token"])
    assert ([item["pid"] for item in done["done"]], done["left"]) == ([started[0].pid], [])
    assert gone(started[0].pid)


def test_a_supervisor_that_still_tells_people_of_the_end_is_no_orphan(workspace: Path) -> None:
    told, go = workspace / "told", workspace / "go"
    tells = f"touch {told}; until [ -e {go} ]; do sleep 0.05; done"
    launch(workspace, "done", "", shell("true", hooks={"command": ["/bin/sh", "-c", tells], "on": ["finish"], "timeout_s": 60}))
    run_dir = workspace / "runs" / "done"
    wait_end(run_dir)
    wait_for(told.exists)
    supervisor = launched(run_dir)["supervisor"]["pid"]
    shown = remedy(workspace, "free_gpu", {"pids": [supervisor]})
    assert shown["items"] == [] and "not through with the end yet" in shown["refused"][0]["why"]
    assert remedy(workspace, "free_gpu", {})["items"] == []
    go.touch()
    wait_for(lambda: not proctable.marked(str(run_dir), 1))


def test_a_process_without_a_mark_of_another_workspace_or_of_a_live_run_is_refused(
    workspace: Path, tmp_path: Path, started: list[Any]
) -> None:
    launch(workspace, "busy", "", shell("exec sleep 600"))
    wait_for(state_is(workspace / "runs" / "busy", "running"))
    started += [
        begun(subprocess.Popen(["sleep", "600"])),
        orphan(tmp_path / "other" / "runs" / "x"),
        orphan(workspace / "runs" / "busy"),
    ]
    pids = [process.pid for process in started]
    shown = remedy(workspace, "free_gpu", {"pids": [*pids, 1, 4194300]})
    why = {entry["what"]: entry["why"] for entry in shown["refused"]}
    assert shown["items"] == [] and len(why) == 5
    assert "bears no mark of a run" in why[str(pids[0])]
    assert "is not of this workspace" in why[str(pids[1])]
    assert "its run busy is running" in why[str(pids[2])]
    assert "another user or to the system" in why["1"]
    error = refused(
        workspace, "free_gpu", {"pids": pids}, preview=False, token=remedy(workspace, "free_gpu", {"pids": pids})["token"]
    )
    assert error.text == "There is nothing to do."
    assert [process.poll() for process in started] == [None] * 3


def test_another_users_process_is_never_touched_even_with_our_mark(workspace: Path, started: list[Any]) -> None:
    assert os.geteuid() == 0, "the containers of this project run tests as root"
    run_dir = ended_run(workspace)
    env = {**os.environ, "EAGLE3_RUN_DIR": str(run_dir), "EAGLE3_ATTEMPT": "1"}
    started.append(subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "600"], env=env))
    wait_for(lambda: Path(f"/proc/{started[0].pid}").stat().st_uid == 65534)
    shown = remedy(workspace, "free_gpu", {"pids": [started[0].pid]})
    assert shown["items"] == [] and "another user" in shown["refused"][0]["why"]
    assert remedy(workspace, "free_gpu", {})["items"] == []


def test_a_new_orphan_makes_the_old_preview_void(workspace: Path, started: list[Any]) -> None:
    run_dir = ended_run(workspace)
    started.append(orphan(run_dir))
    shown = remedy(workspace, "free_gpu", {})
    started.append(orphan(run_dir))
    error = refused(workspace, "free_gpu", {}, preview=False, token=shown["token"])
    assert "not what the preview showed" in error.text and started[0].poll() is None
    assert "needs the token" in refused(workspace, "free_gpu", {}, preview=False).text


# -- clean_leftovers and delete


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 5000)


def test_leftovers_of_extractions_go_and_the_states_stay(workspace: Path) -> None:
    run_dir = ended_run(workspace)
    fill(run_dir / "states", "hs_0.safetensors", "manifest.jsonl", "raw/a.safetensors", "raw/a.safetensors.lock", "b.lock")
    fill(workspace / "checks" / "old" / "scratch", "canary/run/x")
    shown = remedy(workspace, "clean_leftovers", {})
    assert sorted(Path(item["path"]).name for item in shown["items"]) == ["b.lock", "raw", "scratch"]
    assert sum(item["files"] for item in shown["items"]) == 4 and all(item["bytes"] > 0 for item in shown["items"])
    done = remedy(workspace, "clean_leftovers", {}, preview=False, token=shown["token"])
    assert done["left"] == [] and tree(run_dir / "states") == ["hs_0.safetensors", "manifest.jsonl"]
    assert not (workspace / "checks" / "old" / "scratch").exists()


def test_a_live_runs_raw_states_are_no_leftovers(workspace: Path) -> None:
    launch(workspace, "busy", "", shell("exec sleep 600"))
    run_dir = workspace / "runs" / "busy"
    wait_for(state_is(run_dir, "running"))
    fill(run_dir / "states", "raw/a.safetensors")
    shown = remedy(workspace, "clean_leftovers", {})
    assert shown["items"] == [] and "the run busy works there" in shown["refused"][0]["why"]


def test_what_was_picked_is_deleted_and_what_came_since_is_not(workspace: Path) -> None:
    fill(workspace, "runs/a/states/one", "runs/a/keep", "old/two", "old/deep/three")
    args = {"paths": ["old", str(workspace / "runs" / "a" / "states")]}
    shown = remedy(workspace, "delete", args)
    assert [item["files"] for item in shown["items"]] == [2, 1]
    fill(workspace, "old/new")
    assert "not what the preview showed" in refused(workspace, "delete", args, preview=False, token=shown["token"]).text
    assert (workspace / "old" / "two").exists()
    done = remedy(workspace, "delete", args, preview=False, token=remedy(workspace, "delete", args)["token"])
    assert done["left"] == [] and [p for p in tree(workspace) if not p.startswith("lib")] == ["runs", "runs/a", "runs/a/keep"]


def test_between_listing_and_deleting_nothing_new_and_nothing_changed_is_lost(workspace: Path) -> None:
    fill(workspace, "old/same", "old/changed", "old/sub/x")
    listed = trees.listing(workspace / "old")
    (workspace / "old" / "changed").write_bytes(b"worth keeping")
    fill(workspace, "old/sub/new")
    told = trees.remove(workspace / "old", listed)
    assert {why for _, why in told["left"]} == {"it has changed since the preview", "it was not in the preview"}
    assert tree(workspace / "old") == ["changed", "sub", "sub/new"]


def test_a_folder_swapped_for_a_link_after_the_preview_leads_nowhere(workspace: Path, tmp_path: Path) -> None:
    fill(workspace, "old/sub/x")
    fill(tmp_path / "precious", "x")
    listed = trees.listing(workspace / "old")
    (workspace / "old" / "sub").rename(tmp_path / "moved")
    (workspace / "old" / "sub").symlink_to(tmp_path / "precious")
    told = trees.remove(workspace / "old", listed)
    assert tree(tmp_path / "precious") == ["x"] and told["files"] == 0


def test_links_inside_are_deleted_as_links(workspace: Path, tmp_path: Path) -> None:
    fill(tmp_path / "precious", "x")
    fill(workspace, "old/y")
    (workspace / "old" / "link").symlink_to(tmp_path / "precious")
    shown = remedy(workspace, "delete", {"paths": ["old"]})
    remedy(workspace, "delete", {"paths": ["old"]}, preview=False, token=shown["token"])
    assert not (workspace / "old").exists() and tree(tmp_path / "precious") == ["x"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/hostname", "is not inside the workspace"),
        ("../outside", "is not inside the workspace"),
        ("runs/../../outside", "is not inside the workspace"),
        ("out/x", "is not inside the workspace"),
        ("out", "is a link to"),
        (".", "is not inside the workspace"),
        ("", "without a name"),
        ("lib", "the helper runs from there"),
        ("lib/1.0/runner.pyz", "the helper runs from there"),
        ("runs", "a folder of the workspace itself"),
        ("nothing", "is not there"),
    ],
)
def test_what_lies_outside_or_is_needed_is_refused(workspace: Path, tmp_path: Path, path: str, why: str) -> None:
    fill(tmp_path, "outside/x", "ws/lib/1.0/runner.pyz", "ws/runs/a/x")
    (workspace / "out").symlink_to(tmp_path / "outside")
    shown = remedy(workspace, "delete", {"paths": [path]})
    assert shown["items"] == [] and why in shown["refused"][0]["why"]


def test_a_live_run_and_a_folder_that_a_process_uses_stay(workspace: Path, started: list[Any]) -> None:
    launch(workspace, "busy", "", shell("exec sleep 600"))
    wait_for(state_is(workspace / "runs" / "busy", "running"))
    fill(workspace, "env/abc/x", "runs/busy/states/x")
    started.append(subprocess.Popen(["sleep", "600"], cwd=workspace / "env" / "abc"))
    shown = remedy(workspace, "delete", {"paths": ["runs/busy/states", "runs/busy", "env/abc", "env"]})
    why = [entry["why"] for entry in shown["refused"]]
    assert shown["items"] == [] and "the run busy is running" in why[0] and "the run busy is running" in why[1]
    assert f"in use by {started[0].pid}" in why[2]


def test_an_unknown_remedy_names_the_known_ones(workspace: Path) -> None:
    error = refused(workspace, "reboot", {})
    assert error.code == "usage" and "free_gpu" in error.remedy
