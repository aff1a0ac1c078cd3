"""The intervals hold the truth as often as they say: on made-up answers, each easy or hard as a whole, whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.acceptance import Acceptance, of_histogram, together
from eagle3.core.intervals import difference_interval, gain_spread, ratio_variance, share_interval, t_95
from eagle3.core.verdict import MIN_PROMPTS

REPEATS = 1500
"""Of one experiment: the share that holds the truth is then known to 0.6 %."""

Answers = list[Acceptance]


AS_MEASURED, UNLIKE = 20.0, 4.0
"""How alike answers are: the sum of the beta distribution's parameters. Position 0 varies 3.4 times as much as with independent
drafts, as in the pilot's 20 answers (3.8, measured), and 9.9 times."""


def answers(rng: np.random.Generator, count: int, alike: float) -> Answers:
    """Answers of up to 96 tokens, three tokens proposed. Each has an acceptance of its own, 22 % on average; one that accepts
    more has fewer drafts."""
    first = rng.beta(alike * 0.22, alike * 0.78, count)
    tokens = rng.uniform(30, 96, count)
    drafts = np.maximum(1, (tokens / (1 + 1.3 * first)).astype(int))
    by_position = [rng.binomial(drafts, first)]
    for _ in range(2):
        by_position.append(rng.binomial(by_position[-1], 0.25))
    return [
        Acceptance(int(n), 3 * int(n), int(sum(per_pos)), tuple(map(int, per_pos)))
        for n, *per_pos in zip(drafts, *by_position, strict=True)
    ]


def held(count: int, alike: float) -> dict[str, float]:
    """How often the intervals of so many answers hold the truth, with the answers and with the drafts for independent."""
    rng = np.random.default_rng(7)
    truth = together(answers(rng, 200_000, alike))
    found = dict.fromkeys(("length", "position 0", "length, drafts alone", "position 0, drafts alone"), 0)
    for _ in range(REPEATS):
        whole = together(answers(rng, count, alike))
        alone = Acceptance(whole.drafts, whole.draft_tokens, whole.accepted, whole.accepted_per_pos)
        for name, one in (("", whole), (", drafts alone", alone)):
            low, high = one.accept_len_interval
            found[f"length{name}"] += low <= truth.accept_len <= high
            low, high = one.acc_pos_intervals[0]
            found[f"position 0{name}"] += low <= truth.acc_pos[0] <= high
    return {name: hits / REPEATS for name, hits in found.items()}


@pytest.mark.parametrize(("count", "alike"), [(MIN_PROMPTS, AS_MEASURED), (20, AS_MEASURED), (20, UNLIKE)])
def test_with_answers_for_independent_95_percent_hold_the_truth_and_with_drafts_far_fewer(count: int, alike: float) -> None:
    found = held(count, alike)
    assert 0.92 < found["length"] < 0.98
    assert 0.93 < found["position 0"] < 0.98
    assert max(found["length, drafts alone"], found["position 0, drafts alone"]) < 0.8


def test_the_interval_of_a_gain_holds_the_truth_in_95_percent() -> None:
    """Twenty prompts, each with a speed and a gain of its own; the true gain is 1.2."""
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(REPEATS):
        tokens = rng.uniform(30, 96, 20)
        plain_s = tokens / rng.lognormal(math.log(9), 0.1, 20)
        gain = rng.lognormal(math.log(1.2), 0.2, 20)
        draft_s = plain_s / gain
        plain, draft = (list(zip(tokens, seconds, strict=True)) for seconds in (plain_s, draft_s))
        spread = gain_spread(draft, plain)
        measured = plain_s.sum() / draft_s.sum()
        # What all prompts together would give: seconds are weighed, and the mean of 1/gain is exp(0.2²/2)/1.2.
        truth = 1.2 / math.exp(0.2**2 / 2)
        assert spread is not None
        hits += measured / spread <= truth <= measured * spread
    assert 0.92 < hits / REPEATS < 0.98


@pytest.mark.parametrize(("freedom", "published"), [(1, 12.706), (4, 2.776), (7, 2.365), (19, 2.093), (60, 2.000), (120, 1.980)])
def test_students_points_agree_with_the_published_table(freedom: int, published: float) -> None:
    assert t_95(freedom) == pytest.approx(published, abs=0.0006)


def test_no_degree_of_freedom_is_no_knowledge() -> None:
    assert t_95(0) == math.inf
    assert ratio_variance([3], [10]) == math.inf
    assert share_interval(0.3, math.inf, 10, 2.0) == (0.0, 1.0)


def test_the_variance_is_that_of_leaving_out_one_answer_at_a_time() -> None:
    above, below = [4.0, 1.0, 7.0, 3.0], [10.0, 12.0, 9.0, 20.0]
    whole = sum(above) / sum(below)
    without = [(sum(above) - a) / (sum(below) - b) for a, b in zip(above, below, strict=True)]
    assert ratio_variance(above, below) == pytest.approx(3 / 4 * sum((one - whole) ** 2 for one in without))


def test_of_one_answer_nothing_is_known_however_many_drafts_it_has() -> None:
    found = together([of_histogram([600, 200, 100, 100], 3000)])
    assert found.accept_len_interval == (1.0, 4.0)
    assert found.acc_pos_intervals == [(0.0, 1.0)] * 3


@given(st.lists(st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(any), min_size=2, max_size=12))
def test_answers_never_make_an_interval_narrower_than_their_drafts_would(histograms: list[list[int]]) -> None:
    whole = together([of_histogram(one, 3 * sum(one)) for one in histograms])
    alone = Acceptance(whole.drafts, whole.draft_tokens, whole.accepted, whole.accepted_per_pos)
    pairs = [(whole.accept_len_interval, alone.accept_len_interval, whole.accept_len)]
    pairs += list(zip(whole.acc_pos_intervals, alone.acc_pos_intervals, whole.acc_pos, strict=True))
    for (low, high), (low_alone, high_alone), figure in pairs:
        assert low <= low_alone + 1e-9 and high_alone - 1e-9 <= high
        assert low - 1e-9 <= figure <= high + 1e-9


def test_a_gain_of_answers_that_are_not_known_has_no_interval() -> None:
    assert gain_spread([], []) is None
    assert gain_spread([(10, 1.0)], [(10, 2.0)]) is None
    assert gain_spread([(10, 1.0), (10, 1.0)], [(10, 2.0)]) is None
    assert gain_spread([(10, 1.0), (20, 2.0)], [(10, 2.0), (20, 4.0)]) == pytest.approx(1.0)


def test_a_difference_on_the_same_prompts_is_not_widened_by_what_makes_a_prompt_easy() -> None:
    hard_and_easy = [(float(a), 60.0) for a in (5, 30, 8, 25, 6, 28)]
    better = [(above + extra, below) for (above, below), extra in zip(hard_and_easy, (3, 4, 3, 4, 4, 3), strict=True)]
    low, high = difference_interval(better, hard_and_easy)
    assert 0 < low < 3.5 / 60 < high < 0.08
    assert difference_interval(better[:1], better[:1]) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="6 answers cannot be paired with 5"):
        difference_interval(better, better[:5])
