"""A run holds back where a server's other users suffer, and takes its share again when they do not."""

from __future__ import annotations

import pytest

from eagle3.core.courtesy import Courtesy, Latency
from eagle3.engines.prometheus import p95, parse_buckets

USUAL = Latency(0.2, 500)


def test_it_halves_while_the_latency_is_beyond_the_factor_and_grows_one_by_one_when_it_is_not() -> None:
    courtesy = Courtesy(8, 2.0, USUAL)
    assert courtesy.limit == 8
    said = courtesy.take(Latency(0.6, 30))
    assert courtesy.limit == 4
    assert "0.6 s" in said and "3.0 times the usual 0.2 s: 4 instead of 8" in said
    assert [(courtesy.take(Latency(0.3, 30)), courtesy.limit)[1] for _ in range(6)] == [5, 6, 7, 8, 8, 8]


def test_at_the_end_it_holds_everything_and_tries_one_request_once_a_window_brought_nothing() -> None:
    courtesy = Courtesy(2, 2.0, USUAL)
    limits = []
    for window in (Latency(9, 5), Latency(9, 5), None, Latency(0.2, 5)):
        courtesy.take(window)
        limits.append(courtesy.limit)
    assert limits == [1, 0, 1, 2]


def test_without_a_history_the_first_request_alone_tells_what_is_usual() -> None:
    courtesy = Courtesy(8, 2.0, Latency(0.2, 3))
    assert courtesy.limit == 1
    assert courtesy.take(Latency(1.0, 1)) == ""
    assert (courtesy.limit, courtesy.usual_s) == (8, 1.0)


METRICS = """# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {0}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.5"}} {1}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {2}
vllm:time_to_first_token_seconds_count{{engine="0"}} {2}
vllm:time_to_first_token_seconds_sum{{engine="0"}} 1.0
"""


def buckets(*counts: int) -> dict[float, float]:
    return parse_buckets(METRICS.format(*counts), "vllm:time_to_first_token_seconds")


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((0, 0, 0), (100, 100, 100), Latency(0.095, 100)),
        ((100, 100, 100), (100, 200, 200), Latency(0.48, 100)),
        ((0, 0, 0), (0, 0, 10), Latency(0.5, 10)),
        ((5, 5, 5), (5, 5, 5), None),
        ((5, 5, 5), (1, 1, 1), None),
    ],
    ids=["all fast", "only the new ones count", "beyond the last bound", "nothing came", "the server started anew"],
)
def test_the_percentile_is_of_what_came_between_two_readings(
    before: tuple[int, ...], now: tuple[int, ...], expected: Latency | None
) -> None:
    found = p95(buckets(*now), buckets(*before))
    if expected is None or found is None:
        assert found is expected
    else:
        assert (found.p95_s, found.requests) == (pytest.approx(expected.p95_s), expected.requests)
