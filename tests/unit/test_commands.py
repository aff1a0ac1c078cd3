"""fork, pause, checkpoint, resume of a paused run, and prune from a shell: sentences, JSON and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.core.presets import resolve
from eagle3.runner import control, rundir
from eagle3.runner import launch as launching
from tests.runner.finished_run import finished_run
from tests.runner.support import end_everything, plan

SPEC = resolve("pilot", "smollm2-135m", "cpu")


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_everything(tmp_path)


@pytest.fixture
def parent(workspace: Path) -> Path:
    run_dir = finished_run(workspace)
    (run_dir / "spec.toml").write_text(SPEC.to_toml())
    return run_dir


def ask(workspace: Path, *words: str) -> Any:
    return CliRunner().invoke(cli.app, [*words, "--workspace", str(workspace)])


def working(workspace: Path) -> Path:
    """A run whose worker does nothing, for a long time."""
    script = plan("import time; time.sleep(600)")
    return Path(launching.launch(workspace, "r", SPEC.to_toml(), script)["run_dir"])


def test_a_dry_run_of_a_fork_says_what_runs_again_and_why_and_makes_nothing(workspace: Path, parent: Path) -> None:
    words = ("fork", "parent", "--id", "child", "--from-checkpoint", "50", "--set", "train.learning_rate=5e-4", "--dry-run")
    told = ask(workspace, *words)
    assert told.exit_code == 0, told.output
    assert "prepare, regenerate, extract and vocabulary are taken over from parent" in told.stdout
    assert "train.learning_rate changes train: train runs again from checkpoint step-50." in told.stdout
    assert json.loads(ask(workspace, *words, "--json").stdout)["changed"] == ["train.learning_rate"]
    assert not (workspace / "runs" / "child").exists()


def test_a_fork_starts_with_the_parents_numbers_its_own_changes_and_its_lineage(workspace: Path, parent: Path) -> None:
    words = (
        "fork",
        "parent",
        "--id",
        "child",
        "--set",
        "train.max_steps=19",
        "--set",
        "worker_python=/bin/true",
        "--anyway",
        "--detach",
    )
    done = ask(workspace, *words)
    assert done.exit_code == 0, done.output
    child = workspace / "runs" / "child"
    spec = cli.spec_in(child, as_json=False)
    assert (spec.train.max_steps, spec.forked_from) == (19, "parent@all")
    assert (
        spec.model_copy(update={"train": SPEC.train, "forked_from": "", "worker_python": "", "workspace": SPEC.workspace}) == SPEC
    )
    assert (child / "states" / "hs_0.safetensors").stat().st_nlink == 2
    assert (child / "attempts" / "1" / "started.json").exists()


def test_a_runs_spec_starts_the_same_run_again(workspace: Path, parent: Path) -> None:
    words = (
        "run",
        "--spec",
        str(parent / "spec.toml"),
        "--run-id",
        "again",
        "--set",
        "worker_python=/bin/true",
        "--anyway",
        "--detach",
    )
    done = ask(workspace, *words)
    assert done.exit_code == 0, done.output
    spec = cli.spec_in(workspace / "runs" / "again", as_json=False)
    assert spec.model_copy(update={"worker_python": "", "workspace": SPEC.workspace}) == SPEC


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--from-checkpoint", "70"], 2, "There is no complete checkpoint of step 70; there is: 50, 100."),
        (["--from-checkpoint", "50", "--set", "vocabulary.size=4096"], 2, "fork --from-stage vocabulary, or leave the field."),
        (["--from-stage", "evaluate", "--set", "train.max_steps=9"], 2, "train.max_steps changes train, which comes before"),
        (["--set", "train.max_step=9"], 2, "train.max_step: there is no such field"),
        (["--set", "evaluate.max_new_tokens=99999"], 2, "evaluate.max_new_tokens"),
        (["--from-stage", "export"], 2, "evaluate has not finished in that run"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_and_makes_nothing(
    workspace: Path, parent: Path, words: list[str], code: int, said: str
) -> None:
    done = ask(workspace, "fork", "parent", "--id", "child", *words)
    assert done.exit_code == code
    assert said in done.stderr and "Traceback" not in done.output
    assert not (workspace / "runs" / "child").exists()


def test_what_is_not_ready_starts_only_when_asked_to_and_makes_nothing_before(workspace: Path, parent: Path) -> None:
    nowhere = ("--set", "worker_python=/bin/true", "--detach")
    for words in (("run", "--run-id", "child"), ("fork", "parent", "--id", "child")):
        refused = ask(workspace, *words, *nowhere)
        assert refused.exit_code == 1
        assert "This machine is not ready for the pilot: " in refused.stderr, refused.output
        assert "python.interpreter:worker: /bin/true does not start" in refused.stderr
        assert "--anyway starts nevertheless" in refused.stderr
        assert not (workspace / "runs" / "child").exists()
    started = ask(workspace, "run", "--run-id", "child", *nowhere, "--anyway")
    assert started.exit_code == 0 and "Starting anyway." in started.stderr
    assert (report := rundir.read_json(workspace / "runs" / "child" / "report.json"))
    assert report["verdict"] == "not ready", "and the run keeps what it was started under"
    again = ask(workspace, "run", "--run-id", "child", *nowhere)
    assert again.exit_code == 0, "asked for again it starts nothing, so nothing has to be ready"
    fork = ("fork", "parent", "--id", "other", *nowhere)
    assert ask(workspace, *fork, "--anyway").exit_code == 0
    assert ask(workspace, *fork).exit_code == 0, "a fork as well"


def test_a_working_run_is_paused_and_resume_lets_it_go_on(workspace: Path) -> None:
    run_dir = working(workspace)
    assert "r pauses after the work under way; nothing is freed." in ask(workspace, "pause", "r").stdout
    again = ask(workspace, "pause", "r").stdout
    assert "is paused already" in again and f"`eagle3 resume r --workspace {workspace}` lets it go on" in again
    assert "r goes on" in ask(workspace, "resume", "r").stdout
    assert rundir.read_json(run_dir / "control.json")["pause"] is None
    assert not (run_dir / "attempts" / "2").exists(), "it was paused, not ended: the same attempt goes on"


def test_resume_ends_the_pauses_of_people_first_and_says_that_a_guard_still_holds_the_run(workspace: Path) -> None:
    run_dir = working(workspace)
    ask(workspace, "pause", "r")
    control.hold(run_dir, 1, "server")
    person, guard = rundir.read_json(run_dir / "control.json")["pause"], "the guard server"
    first = ask(workspace, "resume", "r").stdout
    again = f"`eagle3 resume r --workspace {workspace}` once more lets it go on."
    assert f"r is still held by {guard}, no longer by {person['by']}; {again}" in first
    assert f"r goes on; {guard} had paused it." in ask(workspace, "resume", "r").stdout
    assert not (run_dir / "attempts" / "2").exists()


def test_a_checkpoint_asked_for_outside_of_the_training_says_what_is_on_disk(workspace: Path) -> None:
    run_dir = working(workspace)
    assert "where all that is finished is on disk" in ask(workspace, "checkpoint", "r").stdout
    rundir.write_json(run_dir / "progress.json", {"v": 1, "attempt": 1, "stage": "train"})
    assert "r saves after the step under way." in ask(workspace, "checkpoint", "r").stdout
    assert json.loads(ask(workspace, "checkpoint", "r", "--json").stdout)["stage"] == "train"


@pytest.mark.parametrize("command", ["pause", "checkpoint"])
def test_a_run_that_does_not_work_is_not_paused(workspace: Path, parent: Path, command: str) -> None:
    done = ask(workspace, command, "parent")
    assert done.exit_code == 1
    assert "parent is not running" in done.stderr


def test_prune_lists_first_and_deletes_only_what_is_named(workspace: Path, parent: Path) -> None:
    for words in (("prune", "parent"), ("prune", "--all"), ("prune", "parent", "--states", "--dry-run")):
        told = ask(workspace, *words)
        assert told.exit_code == 0, told.output
        assert "parent states: 2 files, 7.8 KiB: frees 7.8 KiB" in told.stdout and "would be freed" in told.stdout
    assert (parent / "states" / "hs_0.safetensors").exists()
    assert "7.8 KiB freed." in ask(workspace, "prune", "parent", "--states").stdout
    assert not list((parent / "states").glob("hs_*"))
    assert (parent / "train" / "checkpoints" / "step-50").exists()
    assert json.loads(ask(workspace, "prune", "parent", "--json").stdout)["applied"] is False


@pytest.mark.parametrize("words", [["prune"], ["prune", "parent", "--all"]])
def test_prune_wants_a_run_or_all_of_them(workspace: Path, parent: Path, words: list[str]) -> None:
    done = ask(workspace, *words)
    assert done.exit_code == 2
    assert "Name a run, or say --all." in done.stderr


def test_prune_gives_up_one_run_by_its_name(workspace: Path, parent: Path) -> None:
    done = ask(workspace, "prune", "--all", "--states", "--abandon")
    assert (done.exit_code, done.stderr) == (2, "Name the run to abandon: --abandon does not go with --all.\n")
    (parent / "stages" / "train.json").unlink()
    assert "would need them (--abandon)" in ask(workspace, "prune", "parent", "--states").stdout
    assert "7.8 KiB freed." in ask(workspace, "prune", "parent", "--states", "--abandon").stdout
