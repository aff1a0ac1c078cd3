"""What cannot work together is said before a run starts: by the spec alone, and on the machine that it is to run on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli, work
from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError, names, resolve
from eagle3.core.spec import RunSpec
from eagle3.problems_here import problems_here

ON_GPUS = {"data.prompts": "/data/prompts.jsonl"}


def problems(machine: str = "cpu", **changes: Any) -> list[str]:
    target, given = ("smollm2-135m", {}) if machine == "cpu" else ("qwen3-8b", ON_GPUS)
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return estimate(resolve("pilot", target, machine, {**given, **dotted})).problems


@pytest.mark.parametrize("size", names("size"))
@pytest.mark.parametrize("target", names("target"))
@pytest.mark.parametrize("machine", names("machine"))
def test_no_shipped_presets_are_refused_for_what_they_are(size: str, target: str, machine: str) -> None:
    assert estimate(resolve(size, target, machine, ON_GPUS)).problems == []


@pytest.mark.parametrize(
    ("machine", "changes", "said"),
    [
        ("cpu", {"train__attention": "banana"}, "train.attention is 'banana'"),
        ("cpu", {"target__draft__head_dim": 7}, "target.draft.head_dim (7) is odd"),
        ("cpu", {"target__draft__num_key_value_heads": 5}, "(5) does not divide target.draft.num_attention_heads (9)"),
        ("cpu", {"train__warmup_steps": 200}, "train.warmup_steps (200) is not below train.max_steps (200)"),
        ("cpu", {"device": "cuda"}, "the machine cpu has no GPU"),
        ("cpu", {"server__tensor_parallel": 8}, "server.tensor_parallel is 8"),
        ("8x-b300", {"device": "cpu"}, "device is 'cpu', and devices.regenerate names GPUs"),
        ("8x-b300", {"devices__train": []}, "devices.train names no GPU"),
        ("8x-b300", {"server__tensor_parallel": 9, "devices__regenerate": [], "devices__extract": [], "devices__evaluate": []},
         "server.tensor_parallel is 9, and the machine 8x-b300 has 8 GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_work_together_is_a_problem_that_says_what_to_do(machine: str, changes: dict[str, Any], said: str) -> None:
    (problem,) = problems(machine, **changes)
    assert said in problem
    assert "; " in problem and problem.endswith("."), "what is wrong, and a next step"


def test_a_share_of_the_states_needs_no_gpu_to_train_on_and_servers_that_are_there_none_to_be_spread_over() -> None:
    assert problems("8x-b300", devices__train=[], extract__world=4) == []
    there = {"server__url": "http://there:8000", "server__extract_url": "http://there:8001"}
    assert problems(server__tensor_parallel=8, **there) == []


def test_a_spec_with_a_problem_is_still_read() -> None:
    spec = resolve("pilot", "smollm2-135m", "cpu", {"train.attention": "banana", "train.max_steps": 1})
    assert RunSpec.from_toml(spec.to_toml()) == spec


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train.max_steps", True, "a whole number of 1 or more (steps), not True"),
        ("time_limit_s", False, "a number of 0 or more (s), not False"),
        ("evaluate.concurrencies", [4, True], "a list of whole numbers of 1 or more (requests), not [4, True]"),
    ],
)
def test_a_truth_value_is_no_number(name: str, value: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve("pilot", "smollm2-135m", "cpu", {name: value})
    assert said in str(caught.value)
    assert resolve("pilot", "smollm2-135m", "cpu", {"train.keep_best": True}).train.keep_best


def prompts_of(tmp_path: Path, content: str) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    return file


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "holds no prompts"), ('{"prompt": "One?"}\n', "64 training and 20 held-out prompts are asked for, and there are 1")],
)
@pytest.mark.parametrize("verb", ["validate", "run"])
def test_prompts_that_cannot_be_used_are_said_before_anything_is_made(tmp_path: Path, content: str, said: str, verb: str) -> None:
    words = ["spec", "validate"] if verb == "validate" else ["run", "--workspace", str(tmp_path / "ws")]
    done = CliRunner().invoke(cli.app, [*words, "--set", f"data.prompts={prompts_of(tmp_path, content)}"])
    assert done.exit_code != 0 and said in done.stderr
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.prompts=/no/such.jsonl", "The prompts file /no/such.jsonl cannot be read"),
        ("target.model=/no/model", "The target's folder /no/model is not there; correct target.model"),
    ],
)
@pytest.mark.parametrize("verb", ["validate", "run"])
def test_paths_that_are_not_here_are_said_before_anything_is_made(tmp_path: Path, change: str, said: str, verb: str) -> None:
    words = ["spec", "validate"] if verb == "validate" else ["run", "--workspace", str(tmp_path / "ws")]
    done = CliRunner().invoke(cli.app, [*words, "--set", change])
    assert done.exit_code != 0 and said in done.stderr
    assert not (tmp_path / "ws").exists()


def test_a_target_that_is_yet_to_be_fetched_is_no_problem_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "empty"))
    assert problems_here(resolve("pilot", "smollm2-135m", "cpu")) == []


def test_prompts_are_read_before_a_target_is_fetched_and_fail_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "empty"))
    fetched: list[str] = []
    monkeypatch.setattr(work, "fetch", lambda name, *more: fetched.append(name))
    spec = resolve("smoke", "smollm2-135m", "cpu", {"data.prompts": "/no/such.jsonl"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.toml").write_text(spec.to_toml())
    assert work.work(tmp_path / "run") == work.EXIT_FAILED
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert last["text"].startswith("prepare: The prompts file /no/such.jsonl cannot be read")
    assert fetched == [], "nothing was fetched for a run that cannot work"
