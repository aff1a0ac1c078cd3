"""transformers behind the same requests as vLLM: the same files, on tiny targets at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.engines.transformers_engine import TransformersEngine
from eagle3.engines.transformers_generate import Asked, Generator
from eagle3.rows import read_rows
from eagle3.stages import evaluate, extract, regenerate
from eagle3.stages.context import StageContext
from eagle3.stages.samples import Template
from tests.stages.drafts import tiny_draft
from tests.stages.runs import context, rows
from tests.stages.tiny_models import CAPTURED, spec_of, tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target") / "tiny-llama")


def without_vllm(run_dir: Path, target: Path, **more: Any) -> StageContext:
    """A run on the engine transformers whose vLLM interpreter is not there."""
    overrides = spec_of(target, engine="transformers", regenerate__max_new_tokens=12, **more)
    ctx = context(run_dir, evaluate__prompts=4, evaluate__lossless_prompts=1, **overrides)
    ctx.model_dir = target
    ctx.server_python = "/no/such/python"
    return ctx


def asked(target: Path, text: str, **how: Any) -> Asked:
    return Asked(Template(target).render([{"role": "user", "content": text}]), **{"max_new_tokens": 10, **how})


def test_a_batch_of_prompts_of_any_lengths_gets_the_answers_that_each_gets_alone(target: Path) -> None:
    generator = Generator(target, end_ids=Template(target).end_ids())
    together = [asked(target, "Hi"), asked(target, "What is the weather like at sea?", max_new_tokens=3), asked(target, "x" * 40)]
    answers = generator.answer(together)
    assert [len(answer.token_ids) for answer in answers] == [10, 3, 10]
    assert answers == [generator.answer([one])[0] for one in together]


def test_an_answer_ends_with_the_end_token_and_says_so(target: Path) -> None:
    one = asked(target, "Hi")
    first = Generator(target, end_ids=frozenset()).answer([one])[0].token_ids[0]
    (ended,) = Generator(target, end_ids=frozenset({first})).answer([one])
    assert (ended.token_ids, ended.finish) == ([first], "stop")


def test_sampled_answers_depend_on_their_own_seed_alone(target: Path) -> None:
    generator = Generator(target, end_ids=frozenset())
    first, second, again = generator.answer([asked(target, "Hi", temperature=0.9, seed=seed) for seed in (1, 2, 1)])
    assert first == again != second


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_without_any_vllm_goes_through_all_its_stages_with_servers(target: Path, tmp_path: Path) -> None:
    ctx = without_vllm(tmp_path / "run", target)
    figures = regenerate.run(ctx)
    samples = read_rows(ctx.run_dir / "data" / "samples.jsonl")
    assert figures["prompts"] == len(samples) == 9 and figures["answer_tokens"] == 9 * 12
    assert not (ctx.run_dir / "data" / "baseline.json").exists(), "its speed is no measure of a vLLM's"
    assert extract.run(ctx)["samples"] == 9
    store, engine = extract.open_store(ctx), TransformersEngine(target, CAPTURED)
    for sample in samples:
        states = store.load(sample["index"])["hidden_states"]
        assert (states - engine.states(sample["input_ids"])).abs().max() == 0
    assert extract.whole(ctx) == "" and not (ctx.run_dir / "states" / "raw").exists()
    tiny_draft(ctx.run_dir / "train" / "draft")
    judged = evaluate.run(ctx)
    assert judged["verdict"] == "insufficient evidence"
    assert "the engine is transformers, which does not speculate" in judged["verdict_text"]
    assert judged["served"]["accept_len"] is None and judged["served"]["drafts"] == 0
    assert json.loads((ctx.run_dir / evaluate.SERVED).read_text())["figures"] == judged
    assert [row["text"] for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] == "verdict"] == [judged["verdict_text"]]
