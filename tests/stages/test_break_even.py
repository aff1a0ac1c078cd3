"""The break-even acceptance length before any training, the servers being programs that take vLLM's command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3 import break_even
from eagle3.core.estimate import estimate, lines
from eagle3.core.presets import resolve
from eagle3.core.spec import RunSpec
from eagle3.measured import rates_of
from eagle3.runner import identity
from eagle3.stages.context import StageError, Stopped
from tests.runner.support import wait_for
from tests.stages.fake_vllm import ACCEPTED_A_REQUEST, DRAFTS_A_REQUEST, as_interpreter
from tests.stages.runs import rows


def worker(folder: Path, says: str = "") -> str:
    """A worker's interpreter that makes a folder for the draft, or fails with words of its own."""
    program = folder / "worker"
    program.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\n"
        + (f"raise SystemExit({says!r})\n" if says else "pathlib.Path(sys.argv[-1], 'draft').mkdir(exist_ok=True)\n")
    )
    program.chmod(0o755)
    return str(program)


def spec_for(folder: Path, machine: str = "cpu", says: str = "", **overrides: Any) -> RunSpec:
    few = {"data.train_prompts": 4, "data.heldout_prompts": 4, "evaluate.prompts": 4, "evaluate.concurrency": 2, "server.env": {}}
    given = {
        "workspace": str(folder / "ws"), "worker_python": worker(folder, says), "server_python": as_interpreter(folder),
    }  # fmt: skip
    return resolve("smoke", "smollm2-135m", machine, few | given | overrides)


def never() -> bool:
    return False


def test_on_a_cpu_the_length_is_derived_from_the_two_speeds_and_marked_so(tmp_path: Path) -> None:
    spec = spec_for(tmp_path, **{"evaluate.concurrencies": [1]})
    found = break_even.measure(spec, never)
    assert (found.source, [point.concurrency for point in found.points]) == ("derived", [1, 2])
    length = 1 + sum(ACCEPTED_A_REQUEST) / DRAFTS_A_REQUEST
    for point in found.points:
        assert point.break_even_len == pytest.approx(length * point.plain.tok_s / point.draft.tok_s)
    assert sum("derived from the measured speeds" in line for line in found.lines()) == 2
    plain, draft = rows(tmp_path, "argv.jsonl")
    assert "--speculative_config" not in plain
    assert "synthetic" not in json.dumps(draft), "the CPU build ends at the first request with it"


def test_on_a_gpu_vllm_makes_up_the_acceptance_and_the_length_counts_as_measured(tmp_path: Path) -> None:
    found = break_even.measure(spec_for(tmp_path, "8x-b300"), never)
    assert found.source == "measured"
    argv: list[str] = rows(tmp_path, "argv.jsonl")[1]  # type: ignore[assignment]
    config = json.loads(argv[argv.index("--speculative_config") + 1])
    assert (config["rejection_sample_method"], config["synthetic_acceptance_length"]) == ("synthetic", 2.0)


def test_only_as_many_short_answers_are_asked_for_as_are_in_flight(tmp_path: Path) -> None:
    """A run of 100,000 prompts is not prepared for it, and needs no room for its states."""
    full = resolve("full", "kimi-k2.5", "8x-b300")
    short = break_even.shortened(full)
    assert (short.evaluate.prompts, short.evaluate.max_new_tokens) == (16, break_even.MOST_TOKENS)
    assert short.evaluate.levels == full.evaluate.levels
    assert estimate(short).of("extract").bytes < estimate(full).of("extract").bytes / 1000
    wide = {"evaluate.prompts": 8, "data.heldout_prompts": 8}
    assert break_even.measure(spec_for(tmp_path, **wide), never).prompts == 2


def test_the_command_says_first_how_long_it_takes_by_the_estimates_rates(tmp_path: Path) -> None:
    full = resolve("full", "kimi-k2.5", "8x-b300")
    seconds, said = break_even.expected(full)
    start, generate = (estimate(full).of(stage) for stage in ("extract", "regenerate"))
    assert seconds < 25 * 60 < estimate(full).of("evaluate").seconds, (start, generate)
    assert said.startswith("This takes about 21 min") and "two starts of the server (9 min 58 s each, derived)" in said
    assert "16 prompts with 128 tokens each at concurrency 1, 4, 16" in said
    measured = {"server_start_s": {"value": 60.0, "run": "r"}}
    assert "two starts of the server (1 min 00 s each, measured)" in break_even.expected(full, measured)[1]
    spec = tmp_path / "spec.toml"
    spec.write_text(spec_for(tmp_path, says="torch is not there").to_toml())
    command = [sys.executable, "-m", "eagle3", "breakeven", str(spec), "--workspace", str(tmp_path / "ws")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("This takes about ") and "torch is not there" in last


def test_the_estimate_tells_it_before_the_hours_are_paid(tmp_path: Path) -> None:
    spec = spec_for(tmp_path)
    found = break_even.measure(spec, never)
    told = estimate(spec, rates_of(tmp_path / "ws", spec))
    assert told.break_even[2].value == pytest.approx(found.points[0].break_even_len, abs=0.001)
    said = f"a draft pays from an acceptance length of {told.break_even[2].value:.2f} on, 2 in flight"
    assert any(line.startswith(said) for line in lines(told))


def test_a_draft_that_cannot_be_made_is_told_by_its_last_words_before_the_draft_server_starts(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="No untrained draft of smollm2-135m could be made: torch is not there"):
        break_even.measure(spec_for(tmp_path, says="torch is not there"), never)
    assert rows(tmp_path, "argv.jsonl") == []


def test_a_stop_leaves_no_server_and_no_length(tmp_path: Path) -> None:
    spec = spec_for(tmp_path)
    asked: list[bool] = []

    def stop_once_the_plain_server_is_up() -> bool:
        asked.extend([True] * (tmp_path / "argv.jsonl").exists())
        return len(asked) > 1

    with pytest.raises(Stopped):
        break_even.measure(spec, stop_once_the_plain_server_is_up)
    assert not list((tmp_path / "ws").rglob("servers/*.json"))
    assert rates_of(tmp_path / "ws", spec) == {}


def test_the_command_that_is_killed_takes_its_server_with_it_and_leaves_other_processes_alone(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(spec_for(tmp_path).to_toml())
    command = [sys.executable, "-m", "eagle3", "breakeven", str(spec), "--workspace", str(tmp_path / "ws")]
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            record = wait_for(lambda: next((tmp_path / "ws").rglob("servers/plain.json"), None))
            server = identity.of(json.loads(record.read_text())["pid"])
            assert identity.alive(server)
            process.kill()
            assert process.wait(30) == -signal.SIGKILL, "it ended by the signal, and could not clean up"
            wait_for(lambda: not identity.alive(server))
            log = record.parents[1] / "logs" / "keeper.log"
            assert f"ending what it left: {server['pid']} " in log.read_text()
            assert bystander.poll() is None
        finally:
            process.kill()
            bystander.kill()
            bystander.wait()
