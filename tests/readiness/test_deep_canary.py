"""The canary: real states spoilt in every way that somebody met, measured by the code that measures real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.core.presets import resolve
from eagle3.core.readiness.report import Check
from eagle3.readiness import probe
from eagle3.readiness.measures import Head, agreement, states_facts
from tests.readiness.support import ROOT, gone, judged, tree, wants
from tests.runner.support import wait_for

LAYERS, HIDDEN = [2, 15, 27, 30], 64
LENGTHS = (5, 9, 12)
Tensors = dict[str, torch.Tensor]


def good() -> list[Tensors]:
    """States of three prompts, as a server that is well would leave them."""
    torch.manual_seed(1)
    return [
        {"hidden_states": torch.randn(n, len(LAYERS), HIDDEN) * torch.tensor([4.0, 80, 160, 50])[None, :, None],
         "token_ids": torch.arange(n)}
        for n in LENGTHS
    ]  # fmt: skip


def checks_of(alone: list[Tensors], together: list[Tensors] | None = None, **more: Any) -> dict[str, Check]:
    """What the canary would report of these states."""
    head = {"token": 7, "argmax": 7, "rank": 0, "gap": 0.0}
    facts: dict[str, Any] = {
        "server_start_s": 40.0, "layers": LAYERS, "hidden_size": HIDDEN, "dtype": "float32", "left": [], "removed_bytes": 1,
        "remains": False, "batch_steps": 2, "next": [head] * len(alone),
        "requests": [states_facts(tensors, list(range(n))) for tensors, n in zip(alone, LENGTHS, strict=True)],
    }  # fmt: skip
    readable = not any("lacks" in request for request in facts["requests"])
    pairs = zip(alone, together or alone, strict=True)
    facts["batch"] = [agreement(a["hidden_states"], b["hidden_states"]) for a, b in pairs] if readable else []
    return judged("deep.canary", {**facts, **more})


def spoilt(change: Callable[[Tensors], None]) -> list[Tensors]:
    """The good states with ``change`` made to the second prompt's."""
    states = good()
    change(states[1])
    return states


def test_good_states_pass_every_check() -> None:
    told = checks_of(good())
    assert {check.status for check in told.values()} == {"ok"} and len(told) == 8, told


def lose_a_row(t: Tensors) -> None:
    t["hidden_states"] = t["hidden_states"][1:]


def other_tokens(t: Tensors) -> None:
    t["token_ids"] = t["token_ids"] + 1


def drop_the_last_layer(t: Tensors) -> None:
    t["hidden_states"] = t["hidden_states"][:, :-1]


def one_layer_twice(t: Tensors) -> None:
    t["hidden_states"][:, 2] = t["hidden_states"][:, 1]


def one_nan(t: Tensors) -> None:
    t["hidden_states"][3, 1, 7] = float("nan")


def all_zero(t: Tensors) -> None:
    t["hidden_states"].zero_()


def one_layer_constant(t: Tensors) -> None:
    t["hidden_states"][:, 3] = 2.5


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (lose_a_row, {"extraction.tokens"}),
        (other_tokens, {"extraction.tokens"}),
        (drop_the_last_layer, {"extraction.layers"}),
        (one_layer_twice, {"extraction.layers"}),
        (one_nan, {"extraction.finite", "extraction.batch"}),
        (all_zero, {"extraction.constant", "extraction.layers", "extraction.batch"}),
        (one_layer_constant, {"extraction.constant"}),
    ],
)
def test_spoilt_states_fail_the_check_that_is_there_for_them(change: Callable[[Tensors], None], failing: set[str]) -> None:
    told = checks_of(spoilt(change))
    assert {name for name, check in told.items() if check.status == "fail"} == failing


def test_a_batch_that_mixes_up_its_rows_fails_and_rounding_does_not() -> None:
    mixed = [*reversed([{**t, "hidden_states": t["hidden_states"].clone()} for t in good()])]
    mixed = [{"hidden_states": m["hidden_states"][:1].expand(n, -1, -1)} for m, n in zip(mixed, LENGTHS, strict=True)]
    assert checks_of(good(), mixed)["extraction.batch"].status == "fail"
    halved = [{"hidden_states": t["hidden_states"].bfloat16().float()} for t in good()]
    check = checks_of(good(), halved, dtype="bfloat16")["extraction.batch"]
    assert check.status == "ok" and float(check.evidence.split()[2].rstrip(",")) < 1
    assert checks_of(good(), batch_steps=3)["extraction.batch"].status == "warn", "one by one: nothing was proved"


def test_a_file_without_states_is_told_as_that() -> None:
    states = good()
    del states[0]["hidden_states"]
    told = checks_of(states)
    assert told["extraction.tokens"].status == "fail" and "lacks" in told["extraction.tokens"].evidence


def model_with_a_head(folder: Path) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """A folder with nothing but the norm and the output matrix of a tiny Llama, in two shards."""
    from safetensors.torch import save_file

    torch.manual_seed(3)
    norm, matrix = torch.rand(HIDDEN) + 0.5, torch.randn(50, HIDDEN)
    save_file({"model.norm.weight": norm, "model.layers.0.input_layernorm.weight": norm * 3}, folder / "a.safetensors")
    save_file({"lm_head.weight": matrix, "model.embed_tokens.weight": matrix * 0}, folder / "b.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "rms_norm_eps": 1e-5}))
    return folder, norm, matrix


def test_the_last_layer_leads_to_the_servers_token_and_another_layer_does_not(tmp_path: Path) -> None:
    folder, norm, matrix = model_with_a_head(tmp_path)
    head = Head(folder)
    last = torch.randn(HIDDEN) * 50
    # torch's own norm, written by others, decides what the server would say.
    token = int((matrix @ torch.nn.functional.rms_norm(last, (HIDDEN,), norm, 1e-5)).argmax())
    assert head.ranks(last, token)["rank"] == 0
    assert checks_of(good(), next=[head.ranks(last, token)])["extraction.last_layer"].status == "ok"
    # What the layer before would hold: something else. Its opposite, so that no chance makes it right.
    off_by_one = checks_of(good(), next=[head.ranks(-last, token)])["extraction.last_layer"]
    assert off_by_one.status == "fail" and "stands at place" in off_by_one.evidence


def test_a_near_tie_counts_only_where_states_are_rounded() -> None:
    tied = [{"token": 1, "argmax": 2, "rank": 1, "gap": 0.1}, {"token": 5, "argmax": 5, "rank": 0, "gap": 0.0}]
    assert checks_of(good(), next=tied, dtype="bfloat16")["extraction.last_layer"].status == "ok"
    assert checks_of(good(), next=tied, dtype="float32")["extraction.last_layer"].status == "fail"


def test_a_head_that_is_not_known_is_unknown_never_ok(tmp_path: Path) -> None:
    folder, _, _ = model_with_a_head(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    with pytest.raises(ValueError, match="norm of its own kind"):
        Head(folder)
    assert checks_of(good(), next=[], next_unknown="a norm of its own kind")["extraction.last_layer"].status == "unknown"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests serve on this machine at the same time, which would keep the canary away."""
    monkeypatch.setattr(probe.devices, "held", lambda asked: {})


@pytest.mark.timeout(180)
def test_a_server_that_dies_while_loading_is_the_failure_and_leaves_nothing(alone: None, tmp_path: Path) -> None:
    workspace, python = tmp_path / "ws", tmp_path / "python"
    workspace.mkdir()
    python.write_text(f"#!{sys.executable}\nprint('ValueError: No room for the KV cache')\nraise SystemExit(3)\n")
    python.chmod(0o755)
    spec = resolve("smoke", "smollm2-135m", "cpu")
    asked = wants(workspace, spec_toml=spec.to_toml(), pythons={"worker": sys.executable, "server": str(python)})
    scratch = workspace / "scratch"
    scratch.mkdir()
    told = judged("deep.canary", probe.canary(asked, scratch))
    assert told["extraction.server"].status == "fail" and "No room for the KV cache" in told["extraction.server"].evidence
    assert {told[name].status for name in told if name not in ("extraction.server", "extraction.leftovers")} == {"skipped"}
    assert told["extraction.leftovers"].status == "ok" and tree(scratch) == []


@pytest.mark.timeout(180)
def test_a_canary_that_is_told_to_end_takes_its_server_with_it(tmp_path: Path) -> None:
    python, pid = tmp_path / "python", tmp_path / "pid"
    python.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    python.chmod(0o755)
    (tmp_path / "spec.toml").write_text(resolve("smoke", "smollm2-135m", "cpu").to_toml())
    command = [sys.executable, "-m", "eagle3.readiness.canary", str(tmp_path), str(python)]
    canary = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        server = int(wait_for(lambda: pid.exists() and pid.read_text().strip(), deadline_s=150))
        # Told in the midst of starting it, the canary would not know it yet: then the check that started the canary ends it.
        wait_for(lambda: list(tmp_path.glob("run/servers/*.json")))
        canary.terminate()
        assert canary.wait(30) == 143 and gone(server)
    finally:
        canary.kill()
        canary.communicate()


@pytest.mark.long
@pytest.mark.timeout(420)
def test_a_real_server_passes_the_canary_and_the_disk_is_as_it_was(alone: None, tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "kept.txt").write_text("x")
    before = tree(workspace)
    asked = wants(workspace, spec_toml=resolve("smoke", "smollm2-135m", "cpu").to_toml())
    lines: list[dict[str, Any]] = []
    probe.run(asked, lines.append, scratch=workspace / ".check", only=["deep.canary"])
    assert tree(workspace) == before
    [doing, answer] = lines
    assert (doing["doing"], answer["section"]) == ("deep.canary", "deep.canary")
    told = judged("deep.canary", answer["facts"])
    assert {check.status for check in told.values()} == {"ok"} and len(told) == 8, told
    assert answer["facts"]["batch_steps"] < 8, "the eight prompts shared steps"
    assert [request["shape"][1:] for request in answer["facts"]["requests"]] == [[4, 576]] * 8
    assert {item["rank"] for item in answer["facts"]["next"]} == {0}
