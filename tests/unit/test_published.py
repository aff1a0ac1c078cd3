"""How a run's draft stands beside those that others have published for its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3 import work
from eagle3.core import presets
from eagle3.core.published import Published, beside, drafts_for, sentences, tokens_seen
from eagle3.journal import Journal
from eagle3.stages.context import StageContext
from tests.unit.test_work import context

THEIRS = Published("their draft", "their card", {"MT-Bench": 2.8}, 1000)
SERVED = {"accept_len": 1.53, "drafts": 5000}


@pytest.mark.parametrize("target", presets.names("target"))
def test_every_published_draft_names_its_source_and_a_length_that_can_be(target: str) -> None:
    for draft in drafts_for(target):
        assert draft.source
        assert all(1 < length < 10 for length in draft.lengths.values())


def test_kimi_and_qwen_have_published_drafts_and_smollm_has_none() -> None:
    assert drafts_for("kimi-k2.5")[0].lengths["MT-Bench"] == 2.69
    assert len(drafts_for("qwen3-8b")) == 2
    assert drafts_for("smollm2-135m") == []
    assert beside([], SERVED, [(100, 1.2)], 100) == {}


def test_a_run_that_has_seen_less_is_told_by_its_share_and_not_set_equal() -> None:
    found = beside([THEIRS], SERVED, [(500, 1.3), (1000, 1.6)], 100)
    [row] = found["theirs"]
    assert (row["tokens_seen"], row["ours_simulated_at_equal_tokens"]) == (100_000, None)
    assert sentences(found) == [
        "their draft reports 2.80 (MT-Bench); this one 1.53 served, after 1,000 tokens, 1.00% of about 100,000 that theirs has "
        "seen (derived from its samples)."
    ]


def test_a_run_that_has_seen_more_is_compared_where_it_had_seen_as_much() -> None:
    found = beside([THEIRS], SERVED, [(50_000, 1.9), (100_000, 2.2), (200_000, 2.5)], 100)
    assert found["theirs"][0]["ours_simulated_at_equal_tokens"] == 2.2
    assert "simulated 2.20 after 100,000 tokens" in sentences(found)[0]
    assert found["ours"] == {"tokens_seen": 200_000, "accept_len": 1.53, "drafts": 5000, "source": "served"}


def test_where_theirs_says_no_count_nothing_is_set_equal() -> None:
    silent = Published("silent", "card", {"GSM8K": 3.2}, 0)
    found = beside([silent], SERVED, [(200_000, 2.5)], 100)
    assert found["theirs"][0]["tokens_source"] == "unknown"
    assert "how many theirs has seen is not said" in sentences(found)[0]


def evaluated(run_dir: Path, target: str, rows: list[tuple[int, int, float]]) -> StageContext:
    """A run that has been evaluated: held-out rows as (attempt, step, acceptance length), 2,048 tokens a step, 100 a sample."""
    run_dir.mkdir(parents=True)
    ctx = context(run_dir, **{"target.name": target, "train.pack_tokens": 2048, "train.packs_per_step": 1})
    for attempt, step, length in rows:
        journal = Journal(run_dir, attempt)
        journal.metrics("train", step, split="train", accept_len=9.0)
        journal.metrics("train", step, split="val", accept_len=length)
    journal.metrics("evaluate", 0, split="val", accept_len=8.0)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "train", "split": "val", "step": 60000, "accept_len": 7.0, "att')  # torn by a kill
    ctx.figures = {"extract": {"tokens": 1000, "samples": 10}, "evaluate": {"served": {"accept_len": 2.1, "drafts": 700}}}
    return ctx


def test_at_its_end_a_run_has_the_published_curve_beside_its_own_heldout_one_of_its_last_attempts(tmp_path: Path) -> None:
    rows = [(1, 20_000, 1.5), (1, 40_000, 2.4), (1, 60_000, 2.6), (2, 40_000, 2.0), (2, 60_000, 2.3), (2, 60_000, 2.2)]
    ctx = evaluated(tmp_path / "runs" / "r", "qwen3-8b", rows)
    found = work.published_beside(ctx)
    assert found["ours_simulated"] == [[40_960_000, 1.5], [81_920_000, 2.0], [122_880_000, 2.2]], (
        "a step that was repeated counts once, as it was trained last; neither training's own rows nor served ones are of it"
    )
    assert found["ours"] == {"tokens_seen": 122_880_000, "accept_len": 2.1, "drafts": 700, "source": "served"}
    theirs = found["theirs"]
    assert [row["lengths"] for row in theirs] == [dict(draft.lengths) for draft in drafts_for("qwen3-8b")]
    assert [row["tokens_seen"] for row in theirs] == [101_600_000] * 2, "1,016,000 samples of 100 tokens"
    assert [row["ours_simulated_at_equal_tokens"] for row in theirs] == [2.0, 2.0], "where it had seen about as many"
    result = {
        "run_id": "r", "verdict_text": "Useful.", "wall_s": 61.0, "estimate": {}, "val": {"accept_len": 2.2},
        "served": {"accept_len": 2.1, "drafts": 700, "prompts": 20}, "untrained": {"acc_pos": [0.005]}, "published": found,
    }  # fmt: skip
    work.note(ctx, result)
    told = (ctx.run_dir / "NOTES.md").read_text()
    assert "reports 2.82 (as reported); this one 2.10 served, simulated 2.00 after 81,920,000 tokens, about as many" in told


def test_a_run_whose_target_nobody_has_published_a_draft_for_has_nothing_beside_it(tmp_path: Path) -> None:
    assert work.published_beside(evaluated(tmp_path / "r", "smollm2-135m", [(1, 10, 1.5)])) == {}


def test_the_tokens_that_a_training_has_seen_are_those_of_its_samples_and_not_the_padding_of_its_packs(tmp_path: Path) -> None:
    ctx = evaluated(tmp_path / "runs" / "r", "qwen3-8b", [(1, 2, 1.5), (1, 4, 2.0)])
    first, second = Journal(ctx.run_dir, 1), Journal(ctx.run_dir, 2)
    for step, tokens in ((1, 1000), (2, 1100), (3, 5)):
        first.metrics("train", step, split="train", tokens=tokens)
    for step, tokens in ((3, 1200), (4, 1300)):  # a resume repeats a step
        second.metrics("train", step, split="train", tokens=tokens)
    assert work.published_beside(ctx)["ours_simulated"] == [[2100, 1.5], [4600, 2.0]]


def test_steps_of_a_forks_parent_count_as_average_ones() -> None:
    assert tokens_seen([2, 4], {3: 900, 4: 1100}, capacity=2048) == [2000, 4000]


def test_a_run_that_was_never_scored_stands_there_with_no_curve(tmp_path: Path) -> None:
    ctx = evaluated(tmp_path / "r", "qwen3-8b", [(1, 10, 1.5)])
    (ctx.run_dir / "metrics.jsonl").unlink()
    found = work.published_beside(ctx)
    assert found["ours_simulated"] == [] and found["ours"]["tokens_seen"] == 0
    assert all(row["ours_simulated_at_equal_tokens"] is None for row in found["theirs"])
