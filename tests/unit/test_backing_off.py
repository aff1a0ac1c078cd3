"""Requests in flight: halved when the server answers late, one more at a time when it does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.backing_off import EARLY, FEWEST_TOKENS, WINDOW, BackOff, Change


def settled(most: int = 16, factor: float = 4.0) -> BackOff:
    """One whose first requests took 10 ms a token."""
    found = BackOff(most, factor)
    assert all(found.take(1.0, 100) is None for _ in range(EARLY))
    return found


def changes(found: BackOff, seconds: float, count: int) -> list[Change]:
    return [change for _ in range(count) if (change := found.take(seconds, 100)) is not None]


def test_late_answers_halve_the_limit_once_a_window_and_say_the_numbers() -> None:
    found = settled()
    assert changes(found, 4.1, WINDOW - 1) == []
    (change,) = changes(found, 4.1, 1)
    assert (change.before, change.after, change.median_s) == (16, 8, 0.01)
    assert abs(change.p95_s - 0.041) < 1e-9
    assert changes(found, 4.1, WINDOW - 1) == [], "a change has to show before the next one"


def test_it_falls_to_one_and_never_to_none() -> None:
    found = settled(5)
    assert [change.after for change in changes(found, 99.0, 10 * WINDOW)] == [2, 1]
    assert found.limit == 1


def test_it_grows_again_by_one_up_to_what_was_asked_for() -> None:
    found = settled(4)
    changes(found, 99.0, 2 * WINDOW)
    assert [change.after for change in changes(found, 1.0, 10 * WINDOW)] == [2, 3, 4]
    assert found.limit == 4


def test_a_slow_request_among_many_is_no_reason() -> None:
    found = settled()
    for _ in range(20):
        found.take(50.0, 100)
        assert changes(found, 1.0, WINDOW - 1) == []
    assert found.limit == 16


def test_long_samples_are_not_late_for_being_long_and_short_ones_not_for_their_overhead() -> None:
    found = settled()
    assert [found.take(80.0, 8000) for _ in range(WINDOW)] == [None] * WINDOW
    assert [found.take(0.5, 1) for _ in range(WINDOW)] == [None] * WINDOW
    assert FEWEST_TOKENS > 1


def test_nothing_is_judged_before_there_is_a_yardstick_nor_when_it_is_off() -> None:
    young = BackOff(8, 4.0)
    assert changes(young, 1000.0, EARLY) == []
    off = BackOff(8, 0.0)
    assert changes(off, 1.0, EARLY) + changes(off, 1000.0, 10 * WINDOW) == []


@given(st.lists(st.tuples(st.floats(0.001, 1e4), st.integers(1, 10_000)), max_size=400), st.integers(1, 64))
def test_whatever_comes_the_limit_stays_between_one_and_what_was_asked_for(seen: list[tuple[float, int]], most: int) -> None:
    found = BackOff(most, 2.0)
    for seconds, tokens in seen:
        found.take(seconds, tokens)
        assert 1 <= found.limit <= most
