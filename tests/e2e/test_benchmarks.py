"""The benchmarks work: measured quickly, which says nothing about the figures, but all of them are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Figure

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 110


@pytest.mark.long
def test_the_link_is_measured_and_written_down(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "link", "--quick", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text())["link"]
    targets = {title: figure["target"] for title, figure in figures.items() if figure["target"]}
    assert targets == {
        "connect and full probe at 100 ms": "<= 1.3",
        "times faster than five ssh commands": ">= 3",
        "round trips of a full poll": "<= 1",
        "24 h at 1 Hz, towards the console": "<= 40",
    }
    for title, figure in figures.items():
        assert set(figure) == {"value", "unit", "target", "n", "spread"}
        assert figure["value"] > 0 and figure["unit"] and figure["n"] >= 1, title
        assert title[:20] in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_console_is_measured_beside_its_peers(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "console", "--quick", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=590, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(written.read_text())["console"]
    targets = {title: figure["target"] for title, figure in figures.items() if figure["target"]}
    assert targets["first paint"] == "<= 0.8" and targets["key to paint, 95th percentile"] == "<= 100"
    assert targets["live plots: processor"] == "<= 5" and targets["no run lives, GPUs change: processor"] == "<= 1"
    survived = {title: figure["value"] for title, figure in figures.items() if title.startswith("survived")}
    assert len(survived) == 3 and set(survived.values()) == {1.0}
    assert {title.partition(":")[0] for title in figures} >= {"W&B LEET", "vllmstat", "nvitop"}


def test_a_figure_is_the_median_and_passes_or_misses_its_target() -> None:
    figure = Figure.of([3.0, 1.0, 2.0], "s", "<= 2")
    assert (figure.value, figure.n, figure.spread, figure.met) == (2.0, 3, (1.0, 3.0), True)
    assert Figure(1.9, "×", ">= 2").met is False
    assert Figure(1.0, "s").met is None
    with pytest.raises(ValueError, match="is no target"):
        _ = Figure(1.0, "s", "about 2").met


@pytest.mark.long
def test_the_peers_commands_are_ones_that_the_packages_take(tmp_path: Path) -> None:
    import argparse

    from speculators.train.config import TrainConfig
    from transformers import AutoTokenizer
    from vllm.benchmarks import serve

    from benchmarks.pipeline import peer
    from eagle3.core.presets import resolve

    spec = resolve("pilot", "smollm2-135m", "cpu")
    named = peer.regenerate(spec, "http://127.0.0.1:1", tmp_path / "prompts", tmp_path / "answers")
    assert AutoTokenizer.from_pretrained(named[named.index("--model") + 1]).eos_token_id is not None
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    benchmark = parser.parse_args(peer.serve_benchmark(spec, "http://127.0.0.1:1", tmp_path / "prompts", 20)[3:])
    assert (benchmark.num_prompts, benchmark.skip_chat_template) == (20, True)
    train = peer.train(spec, tmp_path, tmp_path, tmp_path / "draft", 0.8, 40)
    assert TrainConfig.resolve(train[3:]) is not None
    for command in (named, peer.prepare(spec, tmp_path, tmp_path), peer.extract(spec, "http://127.0.0.1:1", tmp_path, tmp_path)):
        told = subprocess.run([*command[:4], "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
        assert not [word for word in command if word.startswith("--") and word not in told], command[3]
