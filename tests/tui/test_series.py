"""Metric rows as series: superseded rows, gaps, thinning."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.records import MetricRow
from tui.plotting.figures import FIGURES
from tui.plotting.rows import Metrics, number
from tui.plotting.series import Point, segments, thin

NAN = math.nan


def points(metrics: Metrics, figure: str, name: str) -> list[Point]:
    """The points of the line ``name`` of a figure, over steps."""
    (line,) = [line for line in FIGURES[figure].lines(metrics, "step") if line.name == name]
    return list(line.points)


def test_the_highest_attempt_wins_for_a_step() -> None:
    metrics = Metrics()
    metrics.take([MetricRow(stage="train", step=5, attempt=2, loss=1.0)])
    metrics.take([MetricRow(stage="train", step=5, attempt=1, loss=9.0)])
    assert points(metrics, "loss", "train") == [(5, 1.0)]


def test_training_and_held_out_rows_of_a_step_are_kept_apart() -> None:
    metrics = Metrics()
    metrics.take([MetricRow(stage="train", step=5, loss=1.0), MetricRow(stage="train", split="val", step=5, loss=2.0)])
    assert points(metrics, "loss", "train") == [(5, 1.0)]
    assert points(metrics, "loss", "held-out") == [(5, 2.0)]


def test_positions_that_a_row_lacks_are_gaps() -> None:
    metrics = Metrics()
    metrics.take([MetricRow(stage="train", step=1, acc_pos=[0.1]), MetricRow(stage="train", step=2, acc_pos=[0.2, None])])
    first, second = (points(metrics, "acceptance", f"position {k}") for k in (1, 2))
    assert first == [(1, 0.1), (2, 0.2)]
    assert all(math.isnan(y) for _, y in second)


def test_nan_inf_and_none_are_gaps() -> None:
    assert [math.isnan(number(value)) for value in (None, NAN, math.inf, -math.inf, 1.0)] == [True, True, True, True, False]
    assert segments([(0, NAN), (1, 1.0), (2, 2.0), (3, math.inf), (4, 4.0), (5, NAN)]) == [[(1, 1.0), (2, 2.0)], [(4, 4.0)]]


def test_thinning_keeps_the_spike() -> None:
    points = [(float(n), 100.0 if n == 7777 else 1.0) for n in range(10_000)]
    kept = thin(points, 40)
    assert (7777.0, 100.0) in kept
    assert len(kept) <= 80


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(NAN)), max_size=400), st.integers(1, 60))
def test_thinning_keeps_order_extremes_and_the_limit(values: list[float], columns: int) -> None:
    points = [(float(n), value) for n, value in enumerate(values)]
    kept = thin(points, columns)
    assert len(kept) <= max(2 * columns, 0) or len(points) <= 2 * columns
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    finite = [y for y in values if math.isfinite(y)]
    if finite:
        shown = [y for _, y in kept if math.isfinite(y)]
        assert (min(shown), max(shown)) == (min(finite), max(finite))
