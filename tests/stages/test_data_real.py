"""The real thing at its smallest: a real target answers on a real server, its states are extracted by another, and
transformers agrees with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.engines.transformers_engine import TransformersEngine
from eagle3.rows import read_rows
from eagle3.stages import extract, prepare, regenerate
from eagle3.stages.context import StageContext
from eagle3.store import StateStore
from tests.stages.runs import TARGET, context

pytestmark = pytest.mark.long

AGREEMENT = 1e-5
"""Largest difference, relative to the layer's largest value, in float32."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[StageContext, dict[str, dict[str, Any]]]:
    """Six conversations of 16-token answers, through prepare, regenerate and extract."""
    ctx = context(
        tmp_path_factory.mktemp("real"), data__train_prompts=2, data__heldout_prompts=4, regenerate__max_new_tokens=16,
        evaluate__prompts=2, evaluate__lossless_prompts=1, evaluate__max_new_tokens=8, evaluate__min_drafts=1,
    )  # fmt: skip
    assert ctx.server_python == sys.executable
    return ctx, {stage.__name__.rpartition(".")[2]: stage.run(ctx) for stage in (prepare, regenerate, extract)}


@pytest.mark.timeout(600)
def test_a_run_leaves_answers_samples_states_and_a_baseline(done: tuple[StageContext, dict[str, dict[str, Any]]]) -> None:
    ctx, figures = done
    samples = read_rows(ctx.run_dir / "data" / "samples.jsonl")
    assert figures["regenerate"]["prompts"] == figures["extract"]["samples"] == len(samples) == 6
    assert figures["regenerate"]["tok_s_no_draft"] > 0
    assert figures["regenerate"]["repeating"] == 0
    for sample in samples:
        assert 0 < sum(sample["loss_mask"]) <= 2 * 17
        assert sample["loss_mask"].index(1) == sample["prompt_tokens"]
    assert not list((ctx.run_dir / "servers").glob("*.json"))
    assert not (ctx.run_dir / "states" / "raw").exists()


@pytest.mark.timeout(600)
def test_vllm_and_transformers_agree_on_every_layer(done: tuple[StageContext, dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    ctx, _ = done
    samples = read_rows(ctx.run_dir / "data" / "samples.jsonl")
    layers = ctx.spec.target.captured_layers
    served = extract.open_store(ctx)
    here = StateStore(tmp_path, layers=layers, hidden_size=ctx.spec.target.hidden_size)
    engine = TransformersEngine(TARGET, layers)
    for sample in samples:
        here.write(sample, engine.states(sample["input_ids"]))
        ours, theirs = served.load(sample["index"])["hidden_states"], here.load(sample["index"])["hidden_states"]
        largest = theirs.abs().amax(dim=(0, 2))
        difference = (ours - theirs).abs().amax(dim=(0, 2)) / largest
        assert difference.max() <= AGREEMENT, dict(zip(layers, difference.tolist(), strict=True))


@pytest.mark.timeout(600)
def test_a_second_start_finds_everything_whole_and_starts_no_server(done: tuple[StageContext, dict[str, dict[str, Any]]]) -> None:
    ctx, figures = done
    ctx.server_python = "/no/such/python"
    assert regenerate.run(ctx)["answer_tokens"] == figures["regenerate"]["answer_tokens"]
    again = extract.run(ctx)
    assert again == {key: figures["extract"][key] for key in ("samples", "tokens", "bytes", "quarantined")}
