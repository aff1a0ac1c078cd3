"""What a workspace has measured is told by its probe, so that an estimate made at the other end agrees with the container's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.core.estimate import estimate
from eagle3.core.presets import resolve
from eagle3.core.rates import known
from eagle3.core.records import Probe
from eagle3.measured import remember
from eagle3.runner import rates, verbs

PILOT = resolve("pilot", "smollm2-135m", "cpu")


def test_the_console_estimates_what_the_container_estimates(tmp_path: Path) -> None:
    remember(
        tmp_path,
        PILOT,
        "r1",
        {"generate_tok_s": 240.0, "train_tok_s": 99.5},
        tokens={"generate_tok_s": 9000.0},
        of_steps={"train_tok_s"},
    )
    probe = Probe.model_validate(json.loads(json.dumps(verbs.handle("probe", {"workspace": str(tmp_path)}))))
    there = estimate(PILOT, known(probe.rates, PILOT))
    said = CliRunner().invoke(cli.app, ["spec", "estimate", "--workspace", str(tmp_path), "--json"])
    told = json.loads(said.stdout)
    assert told["seconds"] == round(there.seconds, 1) != round(estimate(PILOT).seconds, 1)
    assert {stage["stage"]: stage["basis"] for stage in told["stages"]}["train"].startswith("run r1 of this workspace, by")
    assert known(probe.rates, resolve("pilot", "qwen3-8b", "cpu")) == {}, "another target's are not taken"


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"rates": 7}', '{"rates": {"cpu/x": 7, "cpu/y": {"train_tok_s": {"value": "fast"}}}}', "\xff", "[" * 100_000,
     '{"rates": {}, "pad": "' + "x" * rates.MOST_BYTES + '"}'],
)  # fmt: skip
def test_a_spoilt_file_of_rates_tells_none_and_hides_nothing_else(tmp_path: Path, content: str) -> None:
    (tmp_path / rates.FILE).write_text(content, encoding="latin-1")
    assert not any(rates.measured(tmp_path).values())


def test_a_workspace_of_many_targets_tells_those_that_it_measured_last(tmp_path: Path) -> None:
    table = {f"cpu/{n}": {"train_tok_s": {"value": 1.0, "t": n}} for n in range(200)}
    (tmp_path / rates.FILE).write_text(json.dumps({"v": 1, "rates": table}))
    assert set(rates.measured(tmp_path)) == {f"cpu/{n}" for n in range(200 - rates.MOST_KEYS, 200)}


def test_the_estimate_names_folders_of_this_machine_and_no_need_that_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
    said = CliRunner().invoke(cli.app, ["spec", "estimate", "--workspace", str(tmp_path / "ws")]).stdout
    assert f"in {tmp_path / 'cache' / 'targets' / 'smollm2-135m'}: the files of" in said and "{cache}" not in said
    (tmp_path / "cache" / "targets" / "smollm2-135m").mkdir(parents=True)
    said = CliRunner().invoke(cli.app, ["spec", "estimate", "--workspace", str(tmp_path / "ws")]).stdout
    assert "the files of" not in said and f"in {tmp_path / 'ws'}:" in said
