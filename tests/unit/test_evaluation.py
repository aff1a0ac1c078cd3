"""What is told of an evaluation: by requests in flight, by kind of prompt, by temperature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.acceptance import Acceptance, of_histogram, together
from eagle3.core.evaluation import Point, Speed, break_even, by_kind, lines

ANSWER = of_histogram([6, 2, 1, 1], 30)


def test_an_answers_histogram_gives_the_counts_that_the_servers_counters_have() -> None:
    assert Acceptance(drafts=10, draft_tokens=30, accepted=7, accepted_per_pos=(4, 2, 1)) == ANSWER


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_answers_of_a_load_add_up_without_contradiction(histograms: list[list[int]]) -> None:
    whole = together([of_histogram(one, 3 * sum(one)) for one in histograms])
    assert whole.drafts == sum(map(sum, histograms))
    assert whole.problems() == []


def test_kinds_are_told_only_where_every_answer_is_known() -> None:
    assert {kind: found["drafts"] for kind, found in by_kind(["a", "b", "a"], [ANSWER] * 3).items()} == {"a": 20, "b": 10}
    assert by_kind(["a", "b"], [ANSWER, None]) == {}
    assert by_kind([], []) == {}


def test_break_even_is_the_length_at_which_both_are_as_fast() -> None:
    """Measured: length 1.28, 49 s without a draft and 69 s with it."""
    assert break_even(1.28, 2000 / 49, 2000 / 69) == pytest.approx(1.80, abs=0.01)
    assert break_even(1.28, 0.0, 30.0) is None


@given(length=st.floats(1, 4), plain=st.floats(1, 1e4), draft=st.floats(1, 1e4))
def test_a_draft_at_its_break_even_length_would_be_as_fast_as_none(length: float, plain: float, draft: float) -> None:
    needed = break_even(length, plain, draft)
    assert needed is not None
    assert draft / length * needed == pytest.approx(plain)


def test_the_lines_tell_what_is_more_than_the_first_figures() -> None:
    alone = Point(8, Speed(50.0), Speed(40.0, ANSWER)).to_json()
    assert lines([alone], {"all": {}}, []) == []
    wide = Point(16, Speed(50.0), Speed(40.0, ANSWER), Speed(45.0)).to_json()
    kinds = by_kind(["code", "talk"], [ANSWER, ANSWER])
    told = lines([alone, wide], kinds, [{"temperature": 0.7, **kinds["code"]}])
    assert told[1] == "16 in flight: 40.0 tokens/s with the draft, 50.0 without (0.80×), 45.0 with n-grams"
    assert told[2] == "code: length 1.70 (1.00 to 4.00) on 10 drafts, 1 prompts"
    assert told[4].startswith("temperature 0.7: length 1.70")


def test_a_result_of_an_older_version_gives_no_lines_and_no_failure() -> None:
    assert lines([{}], {}, []) == []
    assert lines([{"concurrency": 1}, {"concurrency": 2}], {"a": {}, "b": {}}, [{}])


def test_an_older_results_intervals_are_told_with_what_they_took_for_independent() -> None:
    """As a run of 2026-11-30 wrote it."""
    older = {"accept_len": 1.2435, "accept_len_interval": [1.1805, 1.3066], "drafts": 271, "prompts": 4}
    assert lines([], {"chat": older, "code": older}, [])[0] == (
        "chat: length 1.24 (1.18 to 1.31, drafts taken for independent) on 271 drafts, 4 prompts"
    )


def test_the_speeds_are_told_with_the_spread_between_the_prompts_where_it_is_known() -> None:
    plain, draft = ((90.0, 9.0), (60.0, 5.0), (96.0, 9.5)), ((90.0, 10.0), (60.0, 6.5), (96.0, 12.0))
    point = Point(8, Speed(50.0, each=plain), Speed(40.0, ANSWER, each=draft), Speed(45.0, each=draft)).to_json()
    low, high = point["speedup_interval"]
    assert low < point["speedup"] < high and point["ngram"]["speedup_interval"][0] < point["ngram"]["speedup"]
    assert f"(0.80×, {low:.2f} to {high:.2f})" in lines([point], {}, [])[0]
    assert point["break_even_interval"] == pytest.approx([1.7 / high, 1.7 / low], abs=0.001)
