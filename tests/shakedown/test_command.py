"""A shakedown under the real supervisor: a real SIGKILL, a real resume, and a report that says what was proved. The worker
stands in; the long test has a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.runner import rundir
from tests.shakedown.worker import as_interpreter

RUN = "shakedown-t"


def shake(tmp_path: Path, wrong: str = "", *more: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and what was said."""
    python = as_interpreter(tmp_path, wrong)
    words = ["--size", "pilot", "--id", RUN, "--workspace", str(tmp_path / "ws"), "--set", f"worker_python={python}", "--json"]
    done = CliRunner().invoke(cli.app, ["shakedown", *words, *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, json.loads(done.stdout), done.stderr


def failed(report: dict[str, Any]) -> list[str]:
    return [proof["name"] for proof in report["proofs"] if not proof["ok"]]


def test_a_shakedown_kills_its_worker_once_resumes_it_and_tells_what_it_measured(tmp_path: Path) -> None:
    code, report, said = shake(tmp_path)
    assert (code, report["passed"], failed(report)) == (0, True, []), said
    run_dir = tmp_path / "ws" / "runs" / RUN
    first = rundir.read_object(run_dir / "attempts" / "1" / "exit.json")
    assert first["signal"] == 9 and not (run_dir / "attempts" / "3").exists()
    told = {proof["name"]: proof["text"] for proof in report["proofs"]}
    assert "went on from step 10" in told["resume"] and "longest sample 864 of 1,024" in told["shape"]
    assert "limit 1e-04" in told["same losses"]
    rates = {row["rate"]: row for row in report["rates"]}
    assert (rates["extract_tok_s"]["estimated"], rates["extract_tok_s"]["measured"]) == (399.0, 800.0)
    assert rates["single_tok_s"]["measured"] is None, "what was not measured has no figure"
    assert rates["train_tok_s"]["measured"] > 0
    assert "The whole run:" in said and "Shakedown passed." in said
    # Asked again under its id it starts nothing and tells the same.
    again = shake(tmp_path)
    assert again[0] == 0 and again[1]["proofs"] == report["proofs"] and not (run_dir / "attempts" / "3").exists()


def test_samples_far_shorter_than_the_prompts_that_were_chosen_are_not_the_runs_shape(tmp_path: Path) -> None:
    code, report, _ = shake(tmp_path, "short samples")
    assert (code, failed(report)) == (1, ["shape"])
    (told,) = (proof["text"] for proof in report["proofs"] if proof["name"] == "shape")
    assert told.startswith("longest sample 9 of") and "so longer ones were refused" in told


def test_losses_that_do_not_go_on_from_the_checkpoint_fail_it_and_so_does_a_disk_too_small_for_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.forecast.no_room", lambda spec, place: "It is full." if spec.train.max_steps > 40 else "")
    code, report, _ = shake(tmp_path, "other losses")
    assert (code, failed(report)) == (1, ["same losses", "room"])


def test_a_worker_that_dies_by_itself_is_told_as_the_run_and_resumed_only_when_asked(tmp_path: Path) -> None:
    code, report, said = shake(tmp_path, "own death")
    assert code == 1 and {"save", "kill", "resume", "served draft", "result"} <= set(failed(report))
    assert "SIGKILL (often: out of memory)" in said and "run.log" in said
    assert not (tmp_path / "ws" / "runs" / RUN / "attempts" / "2").exists()
    # What was wrong has been mended: asked again it goes on, and kills the attempt that gets to its training.
    code, report, said = shake(tmp_path)
    assert (code, failed(report)) == (0, []), said
    assert rundir.read_object(tmp_path / "ws" / "runs" / RUN / "attempts" / "2" / "exit.json")["signal"] == 9
    assert (tmp_path / "ws" / "runs" / RUN / "attempts" / "3" / "exit.json").exists()


def test_a_shakedown_beyond_its_time_is_stopped_and_says_where_it_was(tmp_path: Path) -> None:
    code, report, said = shake(tmp_path, "no end", "--limit-min", "0.05")
    assert code == 1 and "save" in failed(report)
    assert "has not ended within" in said and "was stopped in" in said
    assert rundir.read_object(tmp_path / "ws" / "runs" / RUN / "attempts" / "1" / "exit.json")["stopped"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--id", "mine"], "'mine' is not the id of a shakedown"),
        (["--set", "data.prompts=/no/such/file.jsonl"], "The prompts file /no/such/file.jsonl cannot be read"),
        (["--set", "vocabulary.size=99999"], "lower vocabulary.size"),
    ],
)
def test_what_cannot_be_shaken_down_is_said_before_anything_starts(tmp_path: Path, words: list[str], why: str) -> None:
    done = CliRunner().invoke(cli.app, ["shakedown", "--workspace", str(tmp_path / "ws"), *words])
    assert done.exit_code in (1, 2) and why in done.stderr
    assert not (tmp_path / "ws" / "runs").exists()
