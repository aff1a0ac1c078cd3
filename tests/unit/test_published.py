"""How a run's draft stands beside those that others have published for its target."""

from __future__ import annotations

import pytest

from eagle3.core import presets
from eagle3.core.published import Published, beside, drafts_for, sentences

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
