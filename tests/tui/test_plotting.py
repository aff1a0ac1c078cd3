"""How a plot is looked at: zoom, pan, follow, smoothing, clipping, the cursor. What it shows is what was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.plotting.shaping import Reached, clipped, in_sight, nearest, positive, smoothed, value_range
from tui.plotting.view import SMOOTHINGS, View

EVERYTHING = (0.0, 1000.0)
Moves = st.lists(st.sampled_from(["in", "out", "left", "right", "cursor", "all"]), max_size=30)


def moved(view: View, move: str) -> View:
    match move:
        case "in":
            return view.zoomed(0.5, EVERYTHING)
        case "out":
            return view.zoomed(2, EVERYTHING)
        case "left":
            return view.panned(-0.5, EVERYTHING)
        case "right":
            return view.panned(0.5, EVERYTHING)
        case "cursor":
            return view.moved(-5, 80, EVERYTHING)
    return view.all()


@given(Moves)
def test_wherever_one_zooms_and_pans_the_window_lies_inside_what_there_is(moves: list[str]) -> None:
    view = View()
    for move in moves:
        view = moved(view, move)
        low, high = view.within(EVERYTHING)
        assert 0 <= low < high <= 1000
        if view.cursor is not None and move == "cursor":
            assert low <= view.cursor <= high


def test_zooming_in_follows_the_newest_points_as_they_come() -> None:
    view = View().zoomed(0.25, EVERYTHING)
    assert view.within(EVERYTHING) == (750, 1000)
    assert view.within((0, 1200)) == (950, 1200)


def test_panning_away_stays_put_and_panning_back_to_the_end_follows_again() -> None:
    away = View().zoomed(0.25, EVERYTHING).panned(-1, EVERYTHING)
    assert away.within((0, 1200)) == (500, 750)
    assert not away.follow and away.words() == "zoomed, stays put"
    assert away.panned(1, EVERYTHING).follow


def test_zooming_is_around_the_cursor() -> None:
    view = View(cursor=200.0).zoomed(0.5, EVERYTHING)
    assert view.within(EVERYTHING)[0] == pytest.approx(100)
    assert 200 in range(*(int(x) for x in View(cursor=200.0, window=view.window, follow=False).within(EVERYTHING)))


def test_another_axis_forgets_places_on_the_old_one() -> None:
    view = View(window=(1, 2), cursor=1.5, log=True).on("time")
    assert (view.window, view.cursor, view.log, view.axis) == (None, None, True, "time")


def test_the_last_hour_of_a_shorter_run_is_all_of_it() -> None:
    assert View().last(3600).within((0, 100)) == (0, 100)
    assert View().last(3600).within((0, 7300)) == (3700, 7300)


def test_smoothing_goes_round() -> None:
    view = View()
    seen = []
    for _ in SMOOTHINGS:
        view = view.smoother()
        seen.append(view.smoothing)
    assert seen == [*SMOOTHINGS[1:], 0.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.sampled_from(SMOOTHINGS))
def test_a_smoothed_line_lies_between_what_was_measured_before_it(values: list[float], weight: float) -> None:
    line = smoothed([(float(n), y) for n, y in enumerate(values)], weight)
    for n, (_, y) in enumerate(line):
        low, high = min(values[: n + 1]), max(values[: n + 1])
        assert low - 1e-3 <= y <= high + 1e-3


def test_a_constant_stays_itself_however_smooth_and_a_gap_stays_a_gap() -> None:
    line = smoothed([(0, 5.0), (1, math.nan), (2, 5.0), (3, math.inf), (4, 5.0)], 0.98)
    assert [round(y, 9) if math.isfinite(y) else None for _, y in line] == [5.0, None, 5.0, None, 5.0]


def test_a_line_runs_to_the_edges_of_the_window() -> None:
    points = [(float(n), 0.0) for n in range(10)]
    assert [x for x, _ in in_sight(points, (3.5, 5.5))] == [3, 4, 5, 6]
    assert in_sight(points, (20, 30)) == [(9.0, 0.0)]


def test_a_logarithm_of_nothing_positive_is_a_gap() -> None:
    assert [y if math.isfinite(y) else None for _, y in positive([(0, 0.0), (1, -2.0), (2, 100.0), (3, math.nan)])] == [
        None, None, 2.0, None,
    ]  # fmt: skip


def test_an_outlier_does_not_stretch_the_axis_where_it_is_cut_and_is_still_seen() -> None:
    values = [1.0 + n / 1000 for n in range(100)] + [1e6]
    assert value_range(values)[1] == 1e6
    bounds = value_range(values, clip=True)
    assert bounds[1] < 2
    assert clipped([(0, 1e6), (1, math.nan)], bounds)[0] == (0, bounds[1])


def test_a_flat_line_has_a_range_of_some_height() -> None:
    assert value_range([3.0, 3.0]) == (1.5, 4.5)
    assert value_range([0.0]) == (-0.5, 0.5)
    assert value_range([0.2, 0.4], low=0.0) == (0.0, 0.4)


@given(st.lists(st.one_of(st.floats(0, 100), st.just(math.nan)), min_size=1, max_size=50), st.floats(-10, 60))
def test_the_cursor_reads_real_points_only(values: list[float], x: float) -> None:
    points = [(float(n), y) for n, y in enumerate(values)]
    found = nearest(points, x)
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        assert found is None
    else:
        assert found in finite
        assert abs(found[0] - x) == min(abs(p[0] - x) for p in finite)


def test_the_step_of_a_moment_is_the_last_one_reached() -> None:
    reached = Reached([20.0, 10.0], [2, 1])
    assert (reached.at(5), reached.at(10), reached.at(25)) == (None, 1.0, 2.0)
