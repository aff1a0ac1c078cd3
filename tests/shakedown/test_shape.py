"""A shakedown keeps a run's shape and lowers its counts; its prompts are the longest that the servers accept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3.core.presets import difference, names, resolve
from eagle3.core.shakedown import Seen, longest, prompt_limit, proofs, shortened
from eagle3.journal import Journal
from eagle3.shakedown import prompts, seeing

COUNTS = {
    "data.prompts", "data.train_prompts", "data.heldout_prompts", "train.max_steps", "train.warmup_steps",
    "train.checkpoint_every_steps", "train.validate_every_steps", "evaluate.prompts", "evaluate.lossless_prompts",
    "alerts.command",
}  # fmt: skip


@pytest.mark.parametrize("size", ["smoke", "pilot", "full"])
@pytest.mark.parametrize(
    ("target", "machine"), [("smollm2-135m", "cpu"), ("kimi-k2.5", "8x-b300"), ("qwen3-8b", "8x-rtx-pro-6000")]
)
def test_only_counts_become_smaller(size: str, target: str, machine: str) -> None:
    spec = resolve(size, target, machine, {"alerts.command": ["/bin/page-somebody"], "data.prompts": "/data/mine.jsonl"})
    short = shortened(spec, "/ws/shakedowns/s.jsonl")
    assert set(difference(spec, short)) <= COUNTS
    assert not short.alerts.wanted, "a worker killed on purpose wakes nobody"
    assert short.data.train_prompts >= min(spec.regenerate.concurrency, spec.data.train_prompts), "every queue is full once"
    assert 2 * short.train.checkpoint_every_steps < short.train.max_steps <= spec.train.max_steps, "room for the kill"
    assert short.train.warmup_steps < short.train.max_steps


@pytest.mark.parametrize("size", ["smoke", "pilot", "full"])
@pytest.mark.parametrize("target", names("target"))
@pytest.mark.parametrize("machine", names("machine"))
def test_as_many_prompts_are_written_as_the_shakedown_uses(size: str, target: str, machine: str) -> None:
    spec = resolve(size, target, machine)
    uses = shortened(spec, "/ws/shakedowns/s.jsonl").data
    assert prompts.prompts_of(spec) >= uses.train_prompts + uses.heldout_prompts


def test_more_requests_at_once_in_the_evaluation_take_more_prompts() -> None:
    many = {"evaluate.concurrencies": [1, 96], "evaluate.prompts": 96, "data.heldout_prompts": 96}
    spec = resolve("full", "smollm2-135m", "cpu", many)
    uses = shortened(spec, "/ws/shakedowns/s.jsonl").data
    assert uses.heldout_prompts >= 96 and prompts.prompts_of(spec) >= uses.train_prompts + uses.heldout_prompts


def test_the_longest_prompts_that_fit_are_taken_and_longer_ones_only_where_those_are_too_few() -> None:
    assert longest([5, 90, 30, 200, 60], limit=100, count=2) == [1, 4]
    assert longest([5, 300, 200], limit=100, count=2) == [0, 2]


def test_the_prompts_are_the_runs_own_longest_and_one_that_fills_what_the_servers_accept(tmp_path: Path) -> None:
    spec = resolve("pilot", "smollm2-135m", "cpu", {"data.prompts": str(tmp_path / "mine.jsonl")})
    rows = [{"id": f"p{n}", "messages": [{"role": "user", "content": f"number {n} " + "word " * n}]} for n in range(40)]
    rows.append({"id": "huge", "prompt": "word " * 5000})
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = prompts.write(spec, tmp_path, tmp_path / "out" / "s.jsonl", 10)
    written = [json.loads(line) for line in (tmp_path / "out" / "s.jsonl").read_text().splitlines()]
    assert [row["id"] for row in written] == [*(f"p{n}" for n in range(39, 29, -1)), "shakedown-longest"]
    assert 0.8 * prompt_limit(spec) < chosen.longest_tokens <= prompt_limit(spec)
    assert not chosen.exact, "no tokenizer was there"
    assert chosen.sure_tokens == chosen.longest_tokens // prompts.LONGEST_TOKEN_BYTES


def test_lengths_are_counted_by_the_targets_own_tokenizer_where_it_has_one(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count, exact = prompts.counter_of(tmp_path)
    assert exact and count("word " * 7) == 7


def test_what_was_not_reached_is_not_called_proved() -> None:
    short = shortened(resolve("smoke", "smollm2-135m", "cpu"), "/s.jsonl")
    nothing = Seen("failed", "regenerate: the server died", 0, [], 0, None, [], None, {}, {}, {"prepare": 1})
    assert not any(proof.ok for proof in proofs(nothing, short))
    alive = Seen("finished", "", 9, [10], 1, 9, [4711], 10, {11: 1.0}, {11: 1.0}, {}, {"drafts": 3, "accept_len": 1.0}, True)
    assert {proof.name for proof in proofs(alive, short) if not proof.ok} >= {"kill"}


def test_without_a_tokenizer_no_text_has_more_tokens_than_are_counted(tmp_path: Path) -> None:
    count, exact = prompts.counter_of(tmp_path)
    assert not exact
    assert count("\u4f60" * 2000) == 6000, "a character may be three tokens"


def test_a_tokenizer_that_the_target_brings_as_code_counts_where_its_code_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tokens.Halves", None]}}))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokens.py").write_text(
        "class Halves:\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, *args, **more):\n"
        "        return cls()\n\n"
        "    @classmethod\n"
        "    def register_for_auto_class(cls, *args):\n"
        "        pass\n\n"
        "    def encode(self, text, add_special_tokens=True):\n"
        "        return [1] * (len(text) // 2)\n"
    )
    count, exact = prompts.counter_of(tmp_path, trust_code=True)
    assert exact and count("\u4f60" * 2000) == 1000
    assert not prompts.counter_of(tmp_path)[1], "code that is not trusted is not run"


WHOLE = Seen(
    "finished", "", 7000, [10], 1, 9, [], 10, {11: 1.0, 12: 0.9}, {11: 1.0, 12: 0.9}, {"extract": 1, "train": 2},
    {"drafts": 3, "accept_len": 1.0}, True, chosen_tokens=7800,
)  # fmt: skip


def not_proved(seen: Seen, ranks: int = 1) -> dict[str, str]:
    short = shortened(resolve("pilot", "smollm2-135m", "cpu", {"train.ranks": ranks}), "/s.jsonl")
    return {proof.name: proof.text for proof in proofs(seen, short) if not proof.ok}


def test_a_sample_much_shorter_than_what_was_chosen_proves_no_shape() -> None:
    assert not_proved(WHOLE) == {}
    assert "a prompt of 7,800 was chosen" in not_proved(replace(WHOLE, longest_tokens=6200))["shape"]
    assert not_proved(replace(WHOLE, longest_tokens=9, chosen_tokens=0)) == {}, "an older shakedown, which did not note it"


def test_one_step_that_repeats_is_too_few_where_there_are_more() -> None:
    assert "2 are to be compared" in not_proved(replace(WHOLE, after={12: 0.9, 13: 0.8}))["same losses"]
    assert not_proved(replace(WHOLE, resumed_from=39, before={40: 1.0}, after={40: 1.0})) == {}, "there was one step left"


def test_a_rank_that_did_not_take_every_step_is_named() -> None:
    assert not_proved(replace(WHOLE, rank_steps={0: 40, 1: 40}), ranks=2) == {}
    assert "not rank 1 (12)" in not_proved(replace(WHOLE, rank_steps={0: 40, 1: 12}), ranks=2)["ranks"]
    assert "not rank 1 (no step)" in not_proved(replace(WHOLE, rank_steps={0: 40}), ranks=2)["ranks"]


def test_the_ranks_own_word_of_the_attempt_that_finished_the_training_is_taken(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "train.json").write_text(json.dumps({"attempt": 2, "figures": {}}))
    Journal(tmp_path, 1).rank(1, "train", 12)
    Journal(tmp_path, 2).rank(0, "train", 40)
    assert seeing.seen(tmp_path, {"state": "finished", "state_text": ""}).rank_steps == {0: 40}
