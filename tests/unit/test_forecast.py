"""The estimate at work: a disk that is too small is found first, and afterwards the run says how far off it was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli, forecast, work
from eagle3.core.estimate import estimate
from eagle3.core.presets import resolve
from eagle3.measured import rates_of, remember
from eagle3.stages import prepare
from eagle3.stages.context import StageError
from tests.stages.runs import context

SMOKE = resolve("smoke", "smollm2-135m", "cpu")
TOO_MUCH = 1 << 60

SERVED = {"accept_len": 1.2, "drafts": 9, "prompts": 8, "tok_s": 47.3}
FIGURES: dict[str, dict[str, Any]] = {
    "prepare": {},
    "regenerate": {"tok_s": 100.0, "tok_s_no_draft": 70.0, "server_start_s": 30.0, "answer_tokens": 700},
    "extract": {"tok_s": 350.0, "tokens": 2000},
    "vocabulary": {},
    "train": {"val": {"accept_len": 1.3}, "untrained": {"acc_pos": [0.0]}, "resumed_from": None},
    "evaluate": {
        "served": SERVED, "lossless": {}, "verdict": "useful", "verdict_text": "Useful.", "thresholds": {},
    },
    "export": {},
}  # fmt: skip


def finished(run_dir: Path, **forked: str) -> None:
    """The records of a run that is done with its last stage; ``forked``: stages taken from another run."""
    (run_dir / "stages").mkdir(parents=True)
    for number, (stage, figures) in enumerate(FIGURES.items()):
        record = {"v": 1, "stage": stage, "attempt": 1, "figures": figures, "seconds": 20.0 + number, "t": number}
        if stage in forked:
            record["forked_from"] = forked[stage]
        (run_dir / "stages" / f"{stage}.json").write_text(json.dumps(record))
    (run_dir / "states").mkdir()
    (run_dir / "states" / "hs_0.safetensors").write_bytes(bytes(5000))
    os.link(run_dir / "states" / "hs_0.safetensors", run_dir / "states" / "hs_1.safetensors")


def run_to_the_end(run_dir: Path) -> dict[str, Any]:
    ctx = context(run_dir)
    ctx.figures = FIGURES
    forecast.write(run_dir, ctx.spec)
    work.finish(ctx, 0.0)
    return dict(json.loads((run_dir / "result.json").read_text()))


def test_a_finished_run_says_how_far_off_its_estimate_was(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    finished(run_dir)
    found = run_to_the_end(run_dir)["estimate"]
    expected = estimate(SMOKE).of("extract")
    assert found["stages"]["extract"]["seconds_ratio"] == pytest.approx(22 / expected.seconds, rel=0.01)
    assert found["stages"]["extract"]["bytes"][1] == 5000, "a file with two names counts once"
    assert found["stages"]["extract"]["tokens"] == [2112, 2000]
    assert found["seconds_ratio"] == pytest.approx(161 / estimate(SMOKE).seconds, rel=0.01), "of all stages"
    assert "times the estimated time (by stage: prepare" in (run_dir / "NOTES.md").read_text()


def test_what_a_run_measured_is_what_the_next_estimate_takes(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    finished(run_dir)
    run_to_the_end(run_dir)
    known = rates_of(tmp_path, SMOKE)
    assert {name: entry["value"] for name, entry in known.items()} == {
        "server_start_s": 30.0, "generate_tok_s": 100.0, "plain_tok_s": 70.0, "extract_tok_s": 350.0, "draft_tok_s": 47.3,
        "train_tok_s": pytest.approx(24 * 256 / 14, rel=0.01),
    }  # fmt: skip
    assert estimate(SMOKE, known).of("extract").basis == "run first of this workspace"
    assert rates_of(tmp_path, resolve("smoke", "qwen3-8b", "cpu")) == {}, "rates of another target are not taken"


def test_stages_taken_from_another_run_neither_count_nor_teach(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "child"
    finished(run_dir, regenerate="parent", extract="parent")
    found = run_to_the_end(run_dir)["estimate"]
    assert "seconds_ratio" not in found["stages"]["extract"]
    known = [stage for stage in FIGURES if stage not in ("regenerate", "extract")]
    expected = sum(estimate(SMOKE).of(stage).seconds for stage in known)
    assert found["seconds"][0] == pytest.approx(expected, abs=0.1)
    assert "extract_tok_s" not in rates_of(tmp_path, SMOKE)


def test_a_stage_that_an_earlier_attempt_had_begun_is_left_out_of_the_time_and_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    finished(run_dir)
    record = run_dir / "stages" / "extract.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"begun_before": True, "attempt": 2}))
    found = run_to_the_end(run_dir)["estimate"]
    assert found["left_out"] == ["extract"]
    assert "seconds_ratio" not in found["stages"]["extract"] and "bytes_ratio" in found["stages"]["extract"]
    expected = sum(estimate(SMOKE).of(stage).seconds for stage in FIGURES if stage != "extract")
    assert found["seconds"][0] == pytest.approx(expected, abs=0.1)
    assert "without extract, which an earlier attempt had begun" in (run_dir / "NOTES.md").read_text()


def test_a_small_run_does_not_unteach_what_a_large_one_has_measured(tmp_path: Path) -> None:
    remember(tmp_path, SMOKE, "large", {"extract_tok_s": 400.0}, tokens={"extract_tok_s": 10_000})
    remember(tmp_path, SMOKE, "small", {"extract_tok_s": 90.0}, tokens={"extract_tok_s": 1000})
    assert rates_of(tmp_path, SMOKE)["extract_tok_s"]["run"] == "large"
    remember(tmp_path, SMOKE, "newer", {"extract_tok_s": 380.0}, tokens={"extract_tok_s": 5000})
    assert rates_of(tmp_path, SMOKE)["extract_tok_s"]["run"] == "newer"


def test_a_speed_that_others_have_spoilt_and_a_training_that_was_resumed_are_no_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES["evaluate"], "served", SERVED | {"other_cpu": 0.8})
    monkeypatch.setitem(FIGURES["train"], "resumed_from", 12)
    run_dir = tmp_path / "runs" / "noisy"
    finished(run_dir)
    found = run_to_the_end(run_dir)["estimate"]
    assert "seconds_ratio" not in found["stages"]["train"]
    assert not {"draft_tok_s", "train_tok_s"} & rates_of(tmp_path, SMOKE).keys()


def test_a_run_beside_others_from_its_start_to_its_end_teaches_no_speed_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES["evaluate"], "served", SERVED | {"other_cpu": 0.8, "other_cpu_no_draft": 0.7})
    run_dir = tmp_path / "runs" / "crowded"
    finished(run_dir)
    run_to_the_end(run_dir)
    assert rates_of(tmp_path, SMOKE) == {}


def test_a_training_that_was_resumed_is_measured_by_the_steps_of_its_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIGURES["train"], "resumed_from", 12)
    run_dir = tmp_path / "runs" / "resumed"
    finished(run_dir)
    rows = [{"attempt": 2, "step": step, "t": 100.0 + step} for step in range(9, 13)]
    rows += [{"attempt": 1, "step": step, "t": 500.0 + 2 * step} for step in range(13, 25)]
    table = [{"v": 1, "stage": "train", "split": "train", **row} for row in rows]
    table.insert(-3, {"v": 1, "stage": "train", "split": "val", "attempt": 1, "step": 24, "t": 900.0})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    run_to_the_end(run_dir)
    found = rates_of(tmp_path, SMOKE)["train_tok_s"]
    assert found["of_steps"] is True
    assert (found["value"], found["tokens"]) == (SMOKE.train.pack_tokens / 2, 10 * SMOKE.train.pack_tokens)


def test_the_estimate_of_the_first_attempt_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    run_dir.mkdir(parents=True)
    forecast.write(run_dir, SMOKE)
    before = (run_dir / "estimate.json").read_bytes()
    (tmp_path / "rates.json").write_text(
        json.dumps({"v": 1, "rates": {"cpu/smollm2-135m": {"extract_tok_s": {"value": 1.0, "run": "x"}}}})
    )
    forecast.write(run_dir, SMOKE)
    assert (run_dir / "estimate.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"rates": 3}', '{"rates": {"cpu/smollm2-135m": []}}'])
def test_rates_that_somebody_spoilt_are_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "rates.json").write_text(content)
    assert rates_of(tmp_path, SMOKE) == {}


def test_prepare_refuses_a_disk_that_is_too_small_for_the_whole_run_with_the_arithmetic(tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        prepare.run(context(tmp_path, disk_floor_bytes=TOO_MUCH))
    text = str(caught.value)
    assert "free, and the run needs" in text and "hidden states" in text and "576 x 4 bytes" in text
    assert text.endswith("then resume the run, or fork it with other numbers.")
    assert not (tmp_path / "data" / "estimate").exists()


def test_a_run_that_has_no_room_is_refused_before_it_is_made(tmp_path: Path) -> None:
    words = ["run", "--workspace", str(tmp_path / "ws"), "--size", "smoke", "--set", f"disk_floor_bytes={TOO_MUCH}"]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 1
    assert "This machine is not ready for the smoke: " in done.stderr and "kept free = 0 B to use" in done.stderr
    done = CliRunner().invoke(cli.app, [*words, "--anyway"])
    assert done.exit_code == 1, "whoever starts it nevertheless"
    assert "free, and the run needs" in done.stderr
    assert not (tmp_path / "ws").exists()


def test_a_run_that_cannot_work_is_refused_before_it_is_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["run", "--workspace", str(tmp_path / "ws"), "--set", "data.train_prompts=5000"])
    assert done.exit_code == 2
    assert "set data.prompts to a JSONL file" in done.stderr
    assert not (tmp_path / "ws").exists()


def test_what_a_run_holds_already_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Always as much, whatever others write to this disk and delete from it meanwhile.
    free_bytes = 100 << 30
    monkeypatch.setattr(forecast.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    need = estimate(SMOKE).peak_bytes
    tight = resolve("smoke", "smollm2-135m", "cpu", {"disk_floor_bytes": free_bytes - need // 2})
    run_dir = tmp_path / "runs" / "r"
    run_dir.mkdir(parents=True)
    assert forecast.no_room(tight, run_dir)
    # A sparse file: it counts as held without taking the room.
    with (run_dir / "states.bin").open("wb") as file:
        file.truncate(need)
    assert forecast.no_room(tight, run_dir) == ""
