"""Porting a run is changing one word, and every field is explained where a person looks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.core import presets, spec_docs
from eagle3.core.model_card import hub_id
from eagle3.core.presets import SpecError, resolve
from eagle3.core.serving import device_environment, server_arguments
from eagle3.core.spec import RunSpec
from eagle3.runner import vllm

ROOT = Path(__file__).parents[2]
GPU_MACHINES = ("8x-rtx-pro-6000", "8x-b300")
MACHINE_OWNED = ("machine", "device", "hardware.", "devices.", "server.", "train.dtype", "train.attention")


def ask(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["spec", *words])


@pytest.mark.parametrize("size", ["pilot", "full"])
@pytest.mark.parametrize("target", presets.names("target"))
def test_another_machine_changes_only_what_the_machine_owns(size: str, target: str) -> None:
    one, other = (resolve(size, target, machine) for machine in GPU_MACHINES)
    changed = presets.difference(one, other)
    assert "machine" in changed and "hardware.interconnect" in changed
    assert [name for name in changed if not name.startswith(MACHINE_OWNED)] == []


def test_a_cpu_differs_from_a_gpu_machine_only_by_the_machine_and_the_sizes_own_numbers() -> None:
    changed = presets.difference(resolve("pilot", "smollm2-135m", "cpu"), resolve("pilot", "smollm2-135m", "8x-b300"))
    sized = ("data.", "regenerate.", "extract.", "vocabulary.", "train.", "evaluate.")
    assert [name for name in changed if not name.startswith(MACHINE_OWNED + sized)] == []


def test_the_pilot_is_5000_prompts_on_gpus() -> None:
    assert all(resolve("pilot", "kimi-k2.5", machine).data.train_prompts == 5000 for machine in GPU_MACHINES)


def test_kimi_has_its_layers_its_draft_and_its_long_cold_start() -> None:
    spec = resolve("pilot", "kimi-k2.5", "8x-rtx-pro-6000")
    assert spec.target.captured_layers == [2, 30, 58, 61]
    assert (spec.target.hidden_size, spec.target.draft.head_dim, spec.target.vocab_size) == (7168, 128, 163840)
    assert spec.server.env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1200"
    assert spec.server.start_timeout_s == 3600
    assert min(spec.regenerate.request_timeout_s, spec.extract.request_timeout_s) > 1200
    assert "--trust-remote-code" in server_arguments(spec)
    assert hub_id(spec) == "moonshotai/Kimi-K2.5"


def test_a_server_is_shown_as_loading_for_as_long_as_any_preset_lets_it_load() -> None:
    limits = [
        resolve("full", target, machine).server.start_timeout_s for target in presets.names("target") for machine in GPU_MACHINES
    ]
    assert max(limits) == vllm.LOADING_S


def test_over_pcie_nccl_is_told_how_and_with_nvlink_it_is_not() -> None:
    pcie = device_environment(resolve("pilot", "kimi-k2.5", "8x-rtx-pro-6000"), "extract")
    assert {name: pcie[name] for name in ("NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL")} == {
        "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS",
    }  # fmt: skip
    assert pcie["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert not any(name.startswith("NCCL") for name in device_environment(resolve("pilot", "kimi-k2.5", "8x-b300"), "extract"))
    assert device_environment(resolve("pilot", "smollm2-135m", "cpu"), "extract") == {}


def test_a_server_is_spread_over_the_machines_gpus_and_an_extraction_server_never_rounds_its_cache() -> None:
    spec = resolve("pilot", "qwen3-8b", "8x-b300", {"server.kv_cache_dtype": "fp8"})
    assert server_arguments(spec)[:4] == ["--tensor-parallel-size", "8", "--kv-cache-dtype", "fp8"]
    assert "--kv-cache-dtype" not in server_arguments(spec, extraction=True)
    assert server_arguments(resolve("pilot", "smollm2-135m", "cpu")) == ["--enforce-eager"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices.extract": [0, 8]}, "devices.extract names GPU 8, and 8x-b300 has 8 (0 to 7)"),
        ({"devices.train": [1, 1]}, "devices.train [1, 1] names a GPU twice"),
        ({"devices.evaluate": [0, 1]}, "devices.evaluate names 2 GPUs, and server.tensor_parallel is 8"),
        ({"server.tensor_parallel": 0}, "server.tensor_parallel: "),
        ({"target.draft.head_dim": -1}, "target.draft.head_dim: "),
    ],
)
def test_devices_that_are_not_there_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve("pilot", "qwen3-8b", "8x-b300", changes)
    assert said in str(caught.value)


def test_training_may_take_fewer_gpus_than_the_server_is_spread_over() -> None:
    spec = resolve("pilot", "qwen3-8b", "8x-b300", {"devices.train": [0, 1]})
    assert device_environment(spec, "train")["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_every_field_says_what_it_is_for_and_every_number_its_unit() -> None:
    unitless = {"v", "data.seed", "train.seed", "regenerate.temperature", "train.learning_rate"}
    for name, kind, unit, _, text in spec_docs.rows():
        assert text, name
        assert unit or name in unitless or not kind.startswith(("integer", "number", "list of integer")), name


def test_the_page_of_fields_is_current() -> None:
    assert (ROOT / "docs" / "spec.md").read_text() == spec_docs.markdown()
    assert ask("show", "--docs").stdout == spec_docs.markdown()


def test_spec_prints_toml_and_show_prints_the_same(tmp_path: Path) -> None:
    assert ask("--size", "smoke").stdout == ask("show", "--size", "smoke", "--workspace", "~/eagle3").stdout
    (tmp_path / "mine.toml").write_text(ask().stdout)
    assert RunSpec.from_toml((tmp_path / "mine.toml").read_text()) == resolve("pilot", "smollm2-135m", "cpu")
    shown = ask("show", str(tmp_path / "mine.toml"), "--json", "--set", "train.max_steps=7")
    assert json.loads(shown.stdout)["train"]["max_steps"] == 7


def test_a_spec_is_also_read_as_json_and_from_a_run(tmp_path: Path) -> None:
    spec = resolve("smoke", "smollm2-135m", "cpu")
    (tmp_path / "s.json").write_text(spec.model_dump_json())
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "spec.toml").write_text(spec.to_toml())
    where = ("--workspace", str(tmp_path))
    assert ask("diff", str(tmp_path / "s.json"), "old", *where).exit_code == 0
    told = ask("diff", "old", "pilot/smollm2-135m/cpu", *where)
    assert told.exit_code == 1
    assert "train.max_steps: 24 → 200" in told.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as a spec"),
        ("[]", "cannot be read as a spec"),
        ('{"size": "x"}', "machine: it is missing; give text"),
        ("\x00\xff", "cannot be read as a spec"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    done = ask("validate", str(path))
    assert done.exit_code == 2
    assert str(path) in done.stderr and said in done.stderr and "Traceback" not in done.output


def test_a_word_that_names_no_spec_is_refused() -> None:
    done = ask("diff", "nothing", "pilot/smollm2-135m/cpu")
    assert done.exit_code == 2
    assert "'nothing' is no spec" in done.stderr


def test_validate_says_what_would_go_wrong_before_anything_starts() -> None:
    assert ask("validate").exit_code == 0
    done = ask("validate", "full/kimi-k2.5/8x-b300", "--json")
    assert done.exit_code == 1
    assert "builtin" in json.loads(done.stdout)["problems"][0]


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_validate_holds_the_spec_against_a_model_that_is_there(tmp_path: Path, field: str) -> None:
    target = resolve("pilot", "smollm2-135m", "cpu").target
    config = {name: getattr(target, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ("--set", f"target.model={tmp_path}")
    assert ask("validate", *model).exit_code == 0
    (tmp_path / "config.json").write_text(json.dumps(config | {field: 77}))
    done = ask("validate", *model)
    said = f"{tmp_path} has {field} 77, the spec says target.{field} = {config[field]}; correct the target preset."
    assert (done.exit_code, done.stderr) == (1, f"{said}\n")


def test_the_estimate_of_the_command_line_takes_the_workspaces_own_rates(tmp_path: Path) -> None:
    entry = {"extract_tok_s": {"value": 1000.0, "run": "r1", "t": 1}}
    (tmp_path / "rates.json").write_text(json.dumps({"v": 1, "rates": {"cpu/smollm2-135m": entry}}))
    found = json.loads(ask("estimate", "--workspace", str(tmp_path), "--json").stdout)
    assert next(s for s in found["stages"] if s["stage"] == "extract")["basis"] == "run r1 of this workspace"
    assert "regenerate" in ask("estimate").stdout
