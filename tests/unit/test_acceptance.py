"""Acceptance out of two readings of the counters: whatever a server can count, the figures agree with one another."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.acceptance import (
    ACCEPTED,
    DRAFT_TOKENS,
    DRAFTS,
    PER_POSITION,
    Acceptance,
    CountersError,
    SpecCounters,
    between,
)
from eagle3.core.intervals import wilson


def reading(accepted_of_each_draft: list[int], k: int) -> SpecCounters:
    """The counters of a server that made these drafts of k tokens, one number of accepted tokens a draft."""
    return SpecCounters(
        drafts=len(accepted_of_each_draft),
        draft_tokens=k * len(accepted_of_each_draft),
        accepted=sum(accepted_of_each_draft),
        per_position=tuple(float(sum(n > i for n in accepted_of_each_draft)) for i in range(k)),
    )


K = 3
drafts = st.lists(st.integers(0, K), max_size=200)


@given(earlier=drafts, later=drafts)
def test_a_window_holds_what_was_drafted_in_it_and_nothing_earlier(earlier: list[int], later: list[int]) -> None:
    found = between(reading(earlier, K), reading(earlier + later, K))
    assert not found.new_window
    assert found.drafts == len(later)
    assert found.accepted == sum(later)
    assert found.problems() == []


@given(later=drafts)
def test_the_length_is_one_more_than_the_sum_of_the_joint_positions(later: list[int]) -> None:
    found = between(reading([], K), reading(later, K))
    assert math.isclose(1 + sum(found.acc_pos), found.accept_len)


@given(later=drafts)
def test_joint_acceptance_falls_by_position_and_is_the_product_of_the_conditionals(later: list[int]) -> None:
    found = between(reading([], K), reading(later, K))
    assert found.acc_pos == sorted(found.acc_pos, reverse=True)
    product = 1.0
    for joint, conditional in zip(found.acc_pos, found.conditional, strict=False):
        product *= conditional or 0.0
        assert math.isclose(product, joint, abs_tol=1e-12)


@given(earlier=drafts.filter(bool), later=drafts)
def test_counters_that_fell_start_a_window_at_the_servers_start(earlier: list[int], later: list[int]) -> None:
    before, after = reading(earlier + later, K), reading(later, K)
    found = between(before, after)
    assert found.new_window
    assert (found.drafts, found.accepted) == (len(later), sum(later))


@given(later=drafts.filter(bool))
def test_every_interval_holds_its_figure(later: list[int]) -> None:
    found = between(reading([], K), reading(later, K))
    low, high = found.accept_len_interval
    assert 1 <= low <= found.accept_len <= high <= 1 + K
    for p, (low, high) in zip(found.acc_pos, found.acc_pos_intervals, strict=True):
        assert 0 <= low <= p <= high <= 1


@given(later=drafts.filter(lambda x: len(x) > 1))
def test_the_interval_of_the_length_is_that_of_the_drafts_themselves(later: list[int]) -> None:
    """The second moment comes out of the joint positions; it must be the one of the numbers they were counted from."""
    found = between(reading([], K), reading(later, K))
    mean = sum(later) / len(later)
    deviation = math.sqrt(sum((n - mean) ** 2 for n in later) / len(later))
    low, _ = found.accept_len_interval
    assert math.isclose(low, max(1.0, 1 + mean - 1.959964 * deviation / math.sqrt(len(later))), abs_tol=1e-9)


@given(trials=st.integers(1, 10_000), data=st.data())
def test_wilson_is_symmetric_and_narrows_with_more_trials(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    mirrored = wilson(trials - successes, trials)
    assert math.isclose(low, 1 - mirrored[1], abs_tol=1e-9)
    assert math.isclose(high, 1 - mirrored[0], abs_tol=1e-9)
    wider_low, wider_high = low, high
    low, high = wilson(10 * successes, 10 * trials)
    assert high - low <= wider_high - wider_low


def test_wilson_agrees_with_a_published_value() -> None:
    low, high = wilson(103, 530)
    assert (round(low, 4), round(high, 4)) == (0.1629, 0.2302)


def test_wilson_refuses_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        wilson(3, 2)


def test_no_drafts_is_no_acceptance_and_no_certainty() -> None:
    found = between(SpecCounters(per_position=(0.0, 0.0)), SpecCounters(per_position=(0.0, 0.0)))
    assert (found.drafts, found.accept_len, found.acc_pos) == (0, 1.0, [])
    assert found.accept_len_interval == (1.0, 3.0)


def test_the_measured_run_of_85_drafts_and_14_accepted_gives_its_known_length() -> None:
    found = between(SpecCounters(), SpecCounters(85, 255, 14, (13, 1, 0)))
    assert round(found.accept_len, 3) == 1.165
    assert [round(p, 3) for p in found.acc_pos] == [0.153, 0.012, 0.0]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Acceptance(10, 30, 7, (5, 1, 0)), "add up to 6, not to 7"),
        (Acceptance(10, 30, 9, (3, 6, 0)), "must fall by position"),
        (Acceptance(10, 30, 12, (12, 0, 0)), "must fall by position"),
        (Acceptance(10, 5, 6, (5, 1, 0)), "6 tokens were accepted of 5 drafted"),
    ],
)
def test_counts_that_contradict_each_other_are_named(found: Acceptance, said: str) -> None:
    assert any(said in problem for problem in found.problems())


def test_the_counters_are_picked_out_of_a_servers_metrics() -> None:
    metrics = {
        DRAFTS: 85.0, DRAFT_TOKENS: 255.0, ACCEPTED: 14.0, PER_POSITION: {"2": 0.0, "0": 13.0, "1": 1.0},
        "vllm:num_requests_running": 0.0,
    }  # fmt: skip
    assert SpecCounters.from_metrics(metrics) == SpecCounters(85, 255, 14, (13, 1, 0))


def test_a_server_without_a_draft_is_told_by_its_missing_counters() -> None:
    with pytest.raises(CountersError, match="was not started with a draft"):
        SpecCounters.from_metrics({"vllm:num_requests_running": 0.0})
