"""What can be deleted of a run is shown first with what it frees; what somebody still needs is kept and says who."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import fork as forking
from eagle3.runner import launch as launching
from eagle3.runner import prune as pruning
from eagle3.runner import pruned, rundir, verbs
from eagle3.runner.errors import VerbError
from tests.runner.finished_run import finished_run, put
from tests.runner.support import Channel, plan

ALL = pruning.ARTEFACTS
FORKED = ("prepare", "regenerate", "extract", "vocabulary", "train")
EXPORTED = b'{"v": 1, "stage": "export", "attempt": 1, "outputs": {}, "t": 1}'
ENDS = plan("raise SystemExit(0)")


@pytest.fixture
def run_dir(workspace: Path) -> Path:
    """A finished run with two attempts."""
    found = finished_run(workspace)
    put(found, "stages/export.json", EXPORTED)
    for attempt in (1, 2):
        put(found, f"attempts/{attempt}/run.log", b"words")
        put(found, f"attempts/{attempt}/exit.json", b'{"code": 0, "t": 1.0}')
    return found


def items(run_dir: Path, *artefacts: str, apply: bool = False) -> dict[str, dict[str, Any]]:
    return {item["what"]: item for item in pruning.prune(run_dir, artefacts or ALL, apply)["items"]}


def fork(workspace: Path, **more: Any) -> None:
    forking.fork(workspace, "parent", "child", "v = 1\n", ENDS, FORKED, **more)


def names(run_dir: Path) -> set[str]:
    return {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}


def test_a_preview_says_what_would_be_freed_and_deletes_nothing(run_dir: Path) -> None:
    before = names(run_dir)
    found = items(run_dir)
    assert found["states"] == {"what": "states", "files": 2, "bytes": 8000, "freed_bytes": 8000, "kept": ""}
    assert (found["checkpoints"]["files"], found["logs"]["files"]) == (6, 2)
    assert names(run_dir) == before


def test_what_is_named_goes_and_everything_else_stays(run_dir: Path) -> None:
    before = names(run_dir)
    assert items(run_dir, "states", apply=True)["states"]["freed_bytes"] == 8000
    assert before - names(run_dir) == {"states/hs_0.safetensors", "states/hs_1.safetensors"}
    items(run_dir, "checkpoints", "logs", apply=True)
    left = names(run_dir)
    assert not any("step-" in name for name in left)
    assert "attempts/1/run.log" not in left and "attempts/2/run.log" in left, "the last attempt's log stays"
    assert {"train/draft/model.safetensors", "states/manifest.jsonl", "spec.toml"} <= left
    assert "pruned" in (run_dir / "events.jsonl").read_text()


def test_the_untrained_draft_goes_once_the_run_has_finished_and_its_training_stays_whole(workspace: Path, run_dir: Path) -> None:
    (run_dir / "stages" / "export.json").unlink()
    assert items(run_dir)["untrained"]["kept"] == "the run has not finished and may serve it for comparison (--abandon)"
    put(run_dir, "stages/export.json", EXPORTED)
    assert items(run_dir)["untrained"]["freed_bytes"] == len(b"untrained")
    assert items(run_dir, "untrained", apply=True)["untrained"]["files"] == 1
    assert not (run_dir / "train/untrained/model.safetensors").exists()
    assert pruned.on_purpose(run_dir, "train/untrained/model.safetensors")
    assert not pruned.on_purpose(run_dir, "train/draft/model.safetensors")
    fork(workspace)
    child = workspace / "runs" / "child"
    assert (child / "train/draft/model.safetensors").exists() and pruned.on_purpose(child, "train/untrained/model.safetensors")


def test_pruning_twice_is_no_error(run_dir: Path) -> None:
    items(run_dir, apply=True)
    assert all(item["files"] == 0 for item in items(run_dir, apply=True).values())


def test_nothing_of_a_run_that_works_is_touched(workspace: Path) -> None:
    run_dir = Path(launching.launch(workspace, "r", "v = 1\n", plan("import time; time.sleep(600)"))["run_dir"])
    put(run_dir, "states/hs_0.safetensors", b"state")
    put(run_dir, "logs/server-plain.log", b"words")
    for abandon in (False, True):
        found = {item["what"]: item for item in pruning.prune(run_dir, ALL, apply=True, abandon=abandon)["items"]}
        assert found["states"]["kept"] == found["logs"]["kept"] == "the run is running"
    assert (run_dir / "states" / "hs_0.safetensors").exists()


def test_an_unfinished_training_keeps_its_states_and_its_newest_checkpoint(run_dir: Path) -> None:
    (run_dir / "stages" / "train.json").unlink()
    found = items(run_dir, apply=True)
    assert found["states"]["kept"] == "the training has not finished and would need them (--abandon)"
    assert forking.checkpoints(run_dir) == [100]


def test_a_run_that_is_given_up_keeps_nothing_for_a_resume(run_dir: Path) -> None:
    (run_dir / "stages" / "train.json").unlink()
    assert pruning.prune(run_dir, ALL, abandon=True)["items"][0]["freed_bytes"] == 8000
    assert (run_dir / "states" / "hs_0.safetensors").exists(), "a preview"
    pruning.prune(run_dir, ALL, apply=True, abandon=True)
    assert not forking.checkpoints(run_dir) and not list((run_dir / "states").glob("hs_*"))


def test_an_unfinished_training_keeps_its_best_checkpoint_too_which_may_be_what_it_exports(run_dir: Path) -> None:
    (run_dir / "stages" / "train.json").unlink()
    put(run_dir, "train/best.json", b'{"v": 1, "step": 50, "accept_len": 1.5}')
    assert items(run_dir, "checkpoints", apply=True)["checkpoints"]["files"] == 0
    assert forking.checkpoints(run_dir) == [50, 100]


def test_a_file_that_a_fork_knows_by_another_name_frees_nothing_and_stays_there(workspace: Path, run_dir: Path) -> None:
    fork(workspace)
    assert items(run_dir, "states", apply=True)["states"]["freed_bytes"] == 0
    child = workspace / "runs" / "child"
    assert (child / "states" / "hs_1.safetensors").read_bytes() == bytes([1]) * 4000
    assert items(child, "states")["states"]["freed_bytes"] == 8000, "now it is the last name"


def test_a_preview_of_all_runs_counts_a_shared_file_once_its_last_name_would_go(workspace: Path, run_dir: Path) -> None:
    fork(workspace)
    put(workspace / "runs" / "child", "attempts/1/exit.json", b'{"code": 0, "t": 1.0}')
    found = verbs.handle("prune", {"workspace": str(workspace), "artefacts": ["states"]})["runs"]
    assert {run["run_id"]: run["freed_bytes"] for run in found} == {"child": 0, "parent": 8000}


def test_what_a_fork_points_at_is_kept_until_the_fork_is_gone(
    workspace: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)

    monkeypatch.setattr(os, "link", no_link)
    fork(workspace)
    found = items(run_dir, apply=True)
    assert found["states"]["kept"] == found["checkpoints"]["kept"] == "the fork child points at them"
    assert (run_dir / "states" / "hs_0.safetensors").exists()
    assert found["logs"]["kept"] == "", "a fork has no use for logs"
    child = workspace / "runs" / "child"
    child.rename(workspace / "elsewhere")
    assert items(run_dir)["states"]["kept"] == ""


def test_pruning_a_fork_never_reaches_through_its_links(workspace: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)

    monkeypatch.setattr(os, "link", no_link)
    fork(workspace)
    child = workspace / "runs" / "child"
    assert items(child, "states", apply=True)["states"] == {
        "what": "states", "files": 2, "bytes": 0, "freed_bytes": 0, "kept": "",
    }  # fmt: skip
    assert (run_dir / "states" / "hs_0.safetensors").read_bytes() == bytes(4000)


def test_while_a_fork_is_being_made_its_parent_is_left_alone(run_dir: Path) -> None:
    import time

    (run_dir / "pins").mkdir()
    rundir.write_json(run_dir / "pins" / "child.json", {"how": "pending", "t": time.time(), "stages": ["extract"]})
    assert items(run_dir)["states"]["kept"] == "the fork child points at them"


def test_what_is_not_there_is_refused(run_dir: Path) -> None:
    with pytest.raises(VerbError, match="'drafts' cannot be pruned"):
        items(run_dir, "drafts")
    with pytest.raises(VerbError, match="There is no run"):
        items(run_dir.parent / "nobody")


def test_the_verb_answers_for_all_runs_under_the_oldest_python(workspace: Path, run_dir: Path, channel: Channel) -> None:
    found = channel.result("prune", workspace=str(workspace), artefacts=list(ALL))
    assert [run["run_id"] for run in found["runs"]] == ["parent"]
    assert found["runs"][0]["freed_bytes"] > 8000
    assert (run_dir / "states" / "hs_0.safetensors").exists()


def test_a_prune_of_the_states_is_put_down_so_that_no_resume_makes_them_again(run_dir: Path) -> None:
    assert not pruned.states_used_up(run_dir)
    items(run_dir, "states", apply=True)
    assert pruned.states_used_up(run_dir)
    pruned.forget(run_dir, pruned.STATES)
    assert not pruned.states_used_up(run_dir)
