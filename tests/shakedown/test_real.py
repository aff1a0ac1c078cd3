"""A shakedown of the smoke size with everything real: vLLM, speculators' trainer, a small model, a kill and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3 import cli
from eagle3.core.presets import resolve
from eagle3.measured import rates_of
from eagle3.targets import obtain

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def test_a_real_shakedown_proves_every_part_and_measures_what_the_estimate_needs(tmp_path: Path) -> None:
    model = f"target.model={obtain('smollm2-135m', print)}"
    words = ["shakedown", "--size", "smoke", "--workspace", str(tmp_path), "--id", "shakedown-real", "--set", model, "--json"]
    done = CliRunner().invoke(cli.app, [*words, "--limit-min", "35"])
    report = json.loads(done.stdout)
    assert report["passed"], (report["proofs"], done.stderr[-2000:])
    measured = {row["rate"] for row in report["rates"] if row["measured"]}
    # A noisy machine spoils speeds, which then are no measure; a quiet one gives all but the single stream's.
    assert measured <= {row["rate"] for row in report["rates"]} and report["estimate_of_shakedown"]["seconds"]
    known = rates_of(tmp_path, resolve("smoke", "smollm2-135m", "cpu"))
    # The break-even length, where both speeds were had, is a number for its depth and concurrency and no rate of the estimate.
    assert {name for name in known if not name.startswith("break_even_len")} == measured
    assert all(entry["run"] == "shakedown-real" for entry in known.values())
