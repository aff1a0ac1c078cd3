"""The command line refuses with one sentence, the next step and the right exit code, and never with a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.commands.following import follow

ENDED = {"v": 1, "attempt": 1, "code": 1, "signal": None, "stopped": False, "t": 2.0, "survivors": []}


def failed_run(workspace: Path, spec: str = "") -> Path:
    run_dir = workspace / "runs" / "r"
    (run_dir / "attempts" / "1").mkdir(parents=True)
    (run_dir / "launch.json").write_text(json.dumps({"v": 1, "created_at": 1.0}))
    (run_dir / "spec.toml").write_text(spec)
    (run_dir / "attempts" / "1" / "exit.json").write_text(json.dumps(ENDED))
    events = [
        {"v": 1, "attempt": 1, "t": 1.0, "kind": "failed", "level": "error", "text": "prepare: The prompts file is not there."},
        {"v": 1, "attempt": 1, "t": 2.0, "kind": "attempt_ended", "level": "error", "text": "attempt 1 ended: exit code 1"},
    ]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run_dir


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status", "Not An Id"], 2, "'Not An Id' is not a run id. A run id has"),
        (["status", "nothing"], 1, "There is no run nothing in"),
        (["resume", "nothing"], 1, "There is no run nothing in"),
        (["stop", "nothing"], 1, "nothing"),
        (["stop", "nothing", "--mode", "gently"], 2, "'gently' is not a way to stop"),
        (["run", "--run-id", "Not An Id"], 2, "is not a run id. A run id has"),
        (["run", "--size", "pilt"], 2, "did you mean 'pilot'?"),
        (["run", "--set", "train.max_step=3"], 2, "train.max_step: there is no such field"),
    ],
)
def test_a_wrong_command_gets_a_sentence_and_its_exit_code(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(cli.app, [*arguments, "--workspace", str(tmp_path)])
    assert done.exit_code == code
    assert said in done.stderr
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit)


def test_a_workspace_of_nobody_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["ls", "--workspace", "~nobody-of-that-name/x"])
    assert done.exit_code == 2
    assert "Give an absolute path." in done.stderr


def test_a_refusal_is_json_too_where_json_was_asked_for() -> None:
    done = CliRunner().invoke(cli.app, ["spec", "--size", "pilt", "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"] == done.stderr.strip()


@pytest.mark.parametrize("spec", ["no toml", 'v = 1\nsize = "smoke"\n'])
def test_a_resume_with_a_spoilt_spec_names_the_file(tmp_path: Path, spec: str) -> None:
    run_dir = failed_run(tmp_path, spec)
    done = CliRunner().invoke(cli.app, ["resume", "r", "--workspace", str(tmp_path)])
    assert done.exit_code == 1
    assert f"The spec {run_dir / 'spec.toml'}" in done.stderr and "resume" in done.stderr


def test_a_failed_run_is_told_by_the_workers_own_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = failed_run(tmp_path)
    assert "The prompts file is not there." in CliRunner().invoke(cli.app, ["status", "r", "--workspace", str(tmp_path)]).stdout
    with pytest.raises(cli.typer.Exit):
        follow(run_dir, as_json=True)
    assert json.loads(capsys.readouterr().out)["verdict_text"] == "prepare: The prompts file is not there."


def test_a_path_of_the_command_line_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").touch()
    told = CliRunner().invoke(cli.app, ["spec", "--json", "--set", "data.prompts=mine.jsonl", "--set", "target.model=org/name"])
    spec = json.loads(told.stdout)
    assert spec["data"]["prompts"] == str(tmp_path / "mine.jsonl")
    assert spec["target"]["model"] == "org/name"


def finished_run(workspace: Path) -> Path:
    run_dir = failed_run(workspace)
    (run_dir / "attempts" / "1" / "exit.json").write_text(json.dumps({**ENDED, "code": 0}))
    (run_dir / "result.json").write_text("{}")
    return run_dir


def test_a_finished_run_is_not_resumed_by_mistake_and_keeps_its_result(tmp_path: Path) -> None:
    run_dir = finished_run(tmp_path)
    done = CliRunner().invoke(cli.app, ["resume", "r", "--workspace", str(tmp_path)])
    assert done.exit_code == 2
    assert "r has finished, so there is nothing to resume" in done.stderr
    assert (run_dir / "result.json").exists() and not (run_dir / "attempts" / "2").exists()


def test_stopping_a_run_that_has_ended_says_so(tmp_path: Path) -> None:
    finished_run(tmp_path)
    done = CliRunner().invoke(cli.app, ["stop", "r", "--workspace", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "r has ended already: finished.\n")
