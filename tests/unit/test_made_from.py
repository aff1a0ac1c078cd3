"""What a run was made from stands in its folder, and a run from its spec is held against that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3 import cli, made_from, versions, work
from eagle3.core import presets
from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import fingerprint
from eagle3.hub import SOURCE_FILE
from eagle3.journal import Journal
from eagle3.runner import rundir
from eagle3.stages.context import StageContext
from tests.runner.support import end_everything
from tests.stages.runs import rows
from tests.support.hub import COMMIT
from tests.unit.test_commands import ask


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_everything(tmp_path)


@pytest.fixture
def spec(workspace: Path) -> RunSpec:
    """Of a small target and a prompts file, both in the test's folder."""
    model, prompts = workspace / "model", workspace / "prompts.jsonl"
    model.mkdir()
    (model / "config.json").write_text("{}")
    rundir.write_json(model / SOURCE_FILE, {"v": 1, "repo": "acme/tiny", "commit": COMMIT})
    prompts.write_text("".join(json.dumps({"prompt": f"What is {number}?"}) + "\n" for number in range(200)))
    changes: dict[str, Any] = {"target.model": str(model), "data.prompts": str(prompts), "target.source": ""}
    return presets.resolve("smoke", "smollm2-135m", "cpu", changes)


def told(workspace: Path, spec: RunSpec, attempt: int = 1) -> Path:
    """A run whose worker has put down what it is made from."""
    run_dir = workspace / "runs" / "first"
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "spec.toml").write_text(spec.to_toml())
    python = versions.sys.executable
    ctx = StageContext(run_dir, spec, Journal(run_dir, attempt), Path(spec.target.model), python, python, lambda: False)
    work.tell_made_from(ctx)
    return run_dir


def again(workspace: Path, source: object, *more: str) -> Any:
    """A run from a spec, whose worker tells its versions and does nothing else."""
    python = workspace / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in *versions.py) exec {versions.sys.executable} "$@";; esac\n')
    python.chmod(0o755)
    words = ("run", "--spec", str(source), "--run-id", "again", "--detach", "--anyway", "--set", f"worker_python={python}")
    return ask(workspace, *words, *more)


def test_an_attempt_puts_down_its_target_its_prompts_and_its_packages(workspace: Path, spec: RunSpec) -> None:
    run_dir = told(workspace, spec)
    found = json.loads((run_dir / "attempts" / "1" / "made_from.json").read_text())
    assert found["target"] == {"source": "", "commit": COMMIT, "fingerprint": fingerprint(Path(spec.target.model))}
    content = Path(spec.data.prompts).read_bytes()
    assert found["prompts"] == {"file": spec.data.prompts, "sha256": hashlib.sha256(content).hexdigest()}
    assert found["versions"].items() >= versions.versions_here().items()
    assert found["eagle3"] and found["versions"]["python"]


def test_a_run_from_a_spec_whose_run_was_made_from_the_same_says_nothing(workspace: Path, spec: RunSpec) -> None:
    done = again(workspace, told(workspace, spec) / "spec.toml", "--exact")
    assert done.exit_code == 0, done.output
    assert "Not as in" not in done.stderr


@pytest.mark.parametrize("named", ["file", "id"])
def test_a_run_from_a_spec_says_which_prompts_target_and_packages_are_others(
    workspace: Path, spec: RunSpec, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = told(workspace, spec)
    source = run_dir / "spec.toml" if named == "file" else run_dir.name
    Path(spec.data.prompts).write_text("".join(json.dumps({"prompt": f"Another {number}?"}) + "\n" for number in range(200)))
    (Path(spec.target.model) / "config.json").write_text('{"other": 1}')
    monkeypatch.setattr(made_from, "versions_of", lambda python: {"torch": "0.1"})
    refused = again(workspace, source, "--exact")
    assert refused.exit_code == 2 and "This would not be the run of" in refused.stderr
    assert not (workspace / "runs" / "again").exists()
    done = again(workspace, source)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith(f"Not as in {source}: ")]
    assert len(lines) == 3
    assert "The target's files are others (fingerprint" in lines[0]
    assert f"The prompts {spec.data.prompts} are others (SHA-256" in lines[1]
    assert "Packages of the worker differ: " in lines[2] and "torch 0.1, then" in lines[2]


def test_a_worker_whose_packages_cannot_be_asked_is_not_taken_for_the_same(workspace: Path, spec: RunSpec) -> None:
    done = again(workspace, told(workspace, spec) / "spec.toml", "--exact", "--set", "worker_python=/bin/true")
    assert done.exit_code == 2 and "The packages of the worker cannot be told." in done.stderr


def test_what_the_command_itself_names_otherwise_is_meant(workspace: Path, spec: RunSpec) -> None:
    run_dir, other = told(workspace, spec), workspace / "other.jsonl"
    other.write_text("".join(json.dumps({"prompt": f"Why {number}?"}) + "\n" for number in range(200)))
    done = again(workspace, run_dir / "spec.toml", "--exact", "--set", f"data.prompts={other}")
    assert done.exit_code == 0, done.output


def test_a_spec_that_was_copied_with_its_result_is_held_against_that(workspace: Path, spec: RunSpec) -> None:
    run_dir, copied = told(workspace, spec), workspace / "copied"
    copied.mkdir()
    (copied / "spec.toml").write_bytes((run_dir / "spec.toml").read_bytes())
    assert "Nothing beside" in again(workspace, copied / "spec.toml", "--exact").stderr
    rundir.write_json(copied / "result.json", {"v": 1, "made_from": made_from.of_run(run_dir)})
    Path(spec.data.prompts).unlink()
    assert f"The prompts {spec.data.prompts} are not here" in again(workspace, copied / "spec.toml", "--exact").stderr


def test_a_target_that_is_not_here_is_downloaded_at_the_commit_of_that_run(
    workspace: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(workspace / "cache"))
    changes = {"target.model": "{cache}/targets/tiny", "target.source": "hub:acme/tiny"}
    (workspace / "cache" / "targets").mkdir(parents=True)
    Path(spec.target.model).rename(workspace / "cache" / "targets" / "tiny")
    run_dir = told(workspace, presets.override(spec, changes))
    (workspace / "cache" / "targets" / "tiny").rename(workspace / "away")
    done = again(workspace, run_dir / "spec.toml", "--exact")
    assert done.exit_code == 0, done.output
    assert cli.spec_in(workspace / "runs" / "again", as_json=False).target.source == f"hub:acme/tiny@{COMMIT}"


def test_an_attempt_that_is_made_from_another_target_than_the_one_before_says_so(workspace: Path, spec: RunSpec) -> None:
    run_dir = told(workspace, spec)
    told(workspace, spec, attempt=2)
    assert not [row for row in rows(run_dir, "events.jsonl") if row["kind"] == "made-from"]
    (Path(spec.target.model) / "config.json").write_text('{"other": 1}')
    told(workspace, spec, attempt=3)
    (event,) = (row for row in rows(run_dir, "events.jsonl") if row["kind"] == "made-from")
    assert event["level"] == "warn" and "The target's files are others (fingerprint" in event["text"]
