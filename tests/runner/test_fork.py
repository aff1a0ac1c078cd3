"""A fork takes over what another run has made: nothing is copied, nothing that has changed is taken, the parent stays."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import fork as forking
from eagle3.runner import launch as launching
from eagle3.runner import pruned, rundir
from eagle3.runner.errors import VerbError
from tests.runner.finished_run import finished_run, put, stage
from tests.runner.support import ROOT, Channel, plan, summary, wait_end

SPEC = 'v = 1\nsize = "child"\n'
ENDS = plan("raise SystemExit(0)")
ALL = ("prepare", "regenerate", "extract", "vocabulary", "train")


@pytest.fixture
def parent(workspace: Path) -> Path:
    return finished_run(workspace)


def fork(workspace: Path, new_id: str = "child", stages: Any = ALL, **more: Any) -> dict[str, Any]:
    return forking.fork(workspace, "parent", new_id, SPEC, ENDS, stages, **more)


def inodes(run_dir: Path) -> dict[str, int]:
    return {str(path.relative_to(run_dir)): path.stat().st_ino for path in run_dir.rglob("*") if path.is_file()}


def snapshot(run_dir: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and "pins" not in p.parts}


def refusal(workspace: Path, **more: Any) -> VerbError:
    with pytest.raises(VerbError) as caught:
        fork(workspace, **more)
    assert not (workspace / "runs" / "child").exists()
    assert not list((workspace / "runs").glob(".new-*"))
    assert not list((workspace / "runs" / "parent" / "pins").glob("child.json"))
    return caught.value


def test_finished_stages_and_states_get_a_second_name_and_nothing_is_copied(workspace: Path, parent: Path) -> None:
    answer = fork(workspace)
    child = workspace / "runs" / "child"
    before, now = inodes(parent), inodes(child)
    shared = {name for name in now if before.get(name) == now[name]}
    assert {"states/hs_0.safetensors", "states/hs_1.safetensors", "train/draft/model.safetensors", "data/samples.jsonl"} <= shared
    assert answer["how"] == "hard links"
    assert (answer["files"], answer["already"]) == (len(shared), False)
    assert "logs/server-plain.log" not in now, "the log is the parent's own"


def test_files_that_are_appended_to_are_the_childs_own(workspace: Path, parent: Path) -> None:
    fork(workspace)
    before = snapshot(parent)
    for name in ("states/manifest.jsonl", "data/answers.part.jsonl"):
        with (workspace / "runs" / "child" / name).open("ab") as file:
            file.write(b'{"more": 1}\n')
    assert snapshot(parent) == before


def test_the_record_says_where_a_stage_comes_from_and_the_lineage_is_written_down(workspace: Path, parent: Path) -> None:
    fork(workspace, stages=ALL[:4], partial=["train"], checkpoint=50, changed=["train.learning_rate"], actor="ann")
    child = workspace / "runs" / "child"
    assert rundir.read_json(child / "stages" / "extract.json")["forked_from"] == "parent"
    assert not (child / "stages" / "train.json").exists()
    lineage = rundir.read_json(child / "fork.json")
    assert (lineage["run_id"], lineage["checkpoint"], lineage["changed"], lineage["by"]) == (
        "parent", 50, ["train.learning_rate"], "ann",
    )  # fmt: skip
    assert rundir.read_json(child / "launch.json")["forked_from"] == "parent"
    assert rundir.read_json(parent / "pins" / "child.json")["how"] == "hard links"


def test_only_the_checkpoint_asked_for_comes_along_and_what_the_untrained_draft_reaches(workspace: Path, parent: Path) -> None:
    fork(workspace, stages=ALL[:4], partial=["train"], checkpoint=50)
    child = workspace / "runs" / "child"
    assert forking.checkpoints(child) == [50]
    assert (child / "train" / "untrained" / "model.safetensors").exists()
    assert not (child / "train" / "draft").exists()


def test_an_unfinished_training_brings_its_newest_checkpoint(workspace: Path, parent: Path) -> None:
    fork(workspace, stages=ALL[:4], partial=["train"])
    assert forking.checkpoints(workspace / "runs" / "child") == [100]


def test_the_fork_outlives_its_parent(workspace: Path, parent: Path) -> None:
    fork(workspace)
    for path in sorted(parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert (workspace / "runs" / "child" / "states" / "hs_1.safetensors").read_bytes() == bytes([1]) * 4000


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_without_hard_links_the_parents_files_are_pointed_at_and_pinned(
    workspace: Path, parent: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), target)

    monkeypatch.setattr(os, "link", no_link)
    assert fork(workspace)["how"] == "symbolic links"
    child = workspace / "runs" / "child"
    assert (child / "states" / "hs_0.safetensors").is_symlink()
    assert (child / "states" / "hs_0.safetensors").read_bytes() == bytes(4000)
    assert [name for name, _ in forking.pinned_by(parent, time.time())] == ["child"]


def test_a_hard_link_pins_nothing_and_neither_does_a_fork_that_is_gone(workspace: Path, parent: Path) -> None:
    fork(workspace)
    rundir.write_json(parent / "pins" / "gone.json", {"how": "symbolic links"})
    assert forking.pinned_by(parent, time.time()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data/samples.jsonl", "samples.jsonl is not what the stage regenerate left"),
        ("train/draft/model.safetensors", "model.safetensors is not what the stage train left"),
        ("vocabulary/d2t.npy", "d2t.npy is not what the stage vocabulary left"),
    ],
)
@pytest.mark.parametrize("harm", ["change", "delete"])
def test_a_file_that_has_changed_since_is_refused_and_nothing_is_left(
    workspace: Path, parent: Path, name: str, said: str, harm: str
) -> None:
    (parent / name).write_bytes(b"other") if harm == "change" else (parent / name).unlink()
    error = refusal(workspace)
    assert said in error.text
    assert "fork from the stage" in error.remedy


def test_a_checkpoint_that_has_changed_since_is_refused(workspace: Path, parent: Path) -> None:
    (parent / "train" / "checkpoints" / "step-50" / "state.pt").write_bytes(b"torn")
    assert "state.pt is not what was saved" in refusal(workspace, stages=ALL[:4], partial=["train"], checkpoint=50).text


def test_states_that_are_gone_or_short_are_left_out_so_that_the_worker_makes_them_again(workspace: Path, parent: Path) -> None:
    (parent / "states" / "hs_0.safetensors").unlink()
    (parent / "states" / "hs_1.safetensors").write_bytes(b"short")
    fork(workspace)
    assert not list((workspace / "runs" / "child" / "states").glob("hs_*"))


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({"stages": ["evaluate"]}, "not_found", "The stage evaluate of parent has not finished"),
        ({"partial": ["train"], "stages": (), "checkpoint": 70}, "not_found", "no checkpoint of step 70"),
    ],
)
def test_what_is_not_there_is_refused(workspace: Path, parent: Path, more: dict[str, Any], code: str, said: str) -> None:
    error = refusal(workspace, **more)
    assert (error.code, said in error.text) == (code, True)


def test_a_parent_that_is_not_there_and_an_id_of_its_own_are_refused(workspace: Path, parent: Path) -> None:
    with pytest.raises(VerbError, match="There is no run nobody"):
        forking.fork(workspace, "nobody", "child", SPEC, ENDS, ())
    with pytest.raises(VerbError, match="needs an id of its own"):
        forking.fork(workspace, "parent", "parent", SPEC, ENDS, ())
    with pytest.raises(VerbError, match="is not a run id"):
        forking.fork(workspace, "parent", "../x", SPEC, ENDS, ())


def test_asking_twice_makes_one_fork_and_another_spec_is_refused(workspace: Path, parent: Path) -> None:
    fork(workspace)
    assert fork(workspace)["already"] is True
    with pytest.raises(VerbError, match="exists already and is another one"):
        forking.fork(workspace, "parent", "child", SPEC + "grace_s = 1\n", ENDS, ALL)


@pytest.mark.parametrize("fails", [False, True])
def test_of_two_forks_of_one_id_the_slower_one_leaves_the_fasters_pin(
    workspace: Path, parent: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def no_link(*paths: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    make, slower = forking.make_run_dir, [True]

    def overtaken(*arguments: Any, **named: Any) -> bool:
        if slower.pop() if slower else False:
            fork(workspace)
            if fails:
                raise VerbError("disk", "There is no space.", "")
        return make(*arguments, **named)

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(forking, "make_run_dir", overtaken)
    if fails:
        with pytest.raises(VerbError, match="no space"):
            fork(workspace)
    else:
        assert fork(workspace)["already"]
    days_later = time.time() + 9e5
    assert [name for name, _ in forking.pinned_by(parent, days_later)] == ["child"], "its states may not be pruned"


def test_a_fork_of_a_fork_points_at_the_files_themselves(workspace: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)

    monkeypatch.setattr(os, "link", no_link)
    fork(workspace)
    forking.fork(workspace, "child", "grandchild", SPEC, ENDS, ALL)
    found = workspace / "runs" / "grandchild" / "states" / "hs_0.safetensors"
    assert found.readlink() == parent / "states" / "hs_0.safetensors"


HELD_FORK = """
import os, sys, time
from eagle3.runner import fork
link, made = os.link, []
def held_link(*paths):
    made.append(link(*paths))
    if len(made) == 100:
        print("in the middle", flush=True)
        time.sleep(600)
os.link = held_link
fork.fork(sys.argv[1], "parent", "child", sys.argv[2], {"argv": ["/bin/true"]}, sys.argv[3:])
"""
"""A fork that stands still in the middle of its files: whole, it takes no longer than a test takes to look."""


def test_a_fork_that_is_killed_in_the_middle_leaves_no_run_and_can_be_asked_for_again(workspace: Path, parent: Path) -> None:
    states = [{"index": n, "bytes": put(parent, f"states/hs_{n}.safetensors", b"state")["bytes"]} for n in range(300)]
    stage(parent, "extract", **{"states/manifest.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in states)})
    before = snapshot(parent)
    process = subprocess.Popen([sys.executable, "-c", HELD_FORK, str(workspace), SPEC, *ALL], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.readline()
    process.kill()
    process.communicate()
    assert said == b"in the middle\n"
    assert any(len(list(half.glob("states/*"))) > 50 for half in workspace.glob("runs/.new-*"))
    assert not (workspace / "runs" / "child").exists()
    assert snapshot(parent) == before
    assert rundir.runs(workspace) == [parent], "what is left of it is no run"
    assert fork(workspace)["files"] > 300


def test_the_verb_forks_under_the_oldest_python_and_a_launch_starts_the_fork(
    workspace: Path, parent: Path, channel: Channel
) -> None:
    where = {"workspace": str(workspace), "spec_toml": SPEC, "launch": ENDS}
    made = channel.result("fork", run_id="parent", new_id="child", stages=list(ALL), **where)
    assert made["files"] > 5
    started = channel.result("launch", run_id="child", **where)
    assert (started["attempt"], started["already"]) == (1, False)
    assert rundir.read_json(workspace / "runs" / "child" / "launch.json")["forked_from"] == "parent"


def test_a_fork_that_was_made_and_never_started_says_that_a_resume_starts_it_and_it_does(workspace: Path, parent: Path) -> None:
    fork(workspace)
    child = workspace / "runs" / "child"
    told = summary(child)
    assert (told["state"], told["state_text"]) == ("unknown", "made, but never started; resume it to start it")
    assert launching.launch(workspace, "child", "", {}, resume=True)["attempt"] == 1
    assert wait_end(child)["code"] == 0


def test_a_fork_whose_start_fails_for_the_disk_is_still_there_for_the_next_resume(
    workspace: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork(workspace)
    child = workspace / "runs" / "child"
    before = snapshot(child)

    def full(arguments: list[str], **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(child))

    with monkeypatch.context() as patch:
        patch.setattr("eagle3.runner.detach.spawn", full)
        with pytest.raises(VerbError) as caught:
            launching.launch(workspace, "child", "", {}, resume=True)
    assert caught.value.code == "disk"
    assert snapshot(child) == before
    assert launching.launch(workspace, "child", "", {}, resume=True)["attempt"] == 1
    wait_end(child)


def test_a_fork_that_takes_the_training_over_takes_its_pruned_states_for_read(workspace: Path, parent: Path) -> None:
    for path in (parent / "states").glob("hs_*"):
        path.unlink()
    assert forking.forkable(parent)["states_missing"] == 2
    fork(workspace)
    assert pruned.states_used_up(workspace / "runs" / "child")
    fork(workspace, "other", stages=[stage for stage in ALL if stage != "train"])
    assert not pruned.states_used_up(workspace / "runs" / "other")
