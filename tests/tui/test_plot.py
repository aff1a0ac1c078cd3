"""What a plot draws before it is drawn: pieces, ticks, colours."""

from __future__ import annotations

import math

from tui.widgets.plot import prepared, rgb, ticks_of, value_ticks


def test_a_series_is_drawn_in_the_pieces_between_its_gaps() -> None:
    points = tuple((float(n), math.nan if n == 3 else float(n)) for n in range(6))
    assert [len(piece) for piece in prepared(points, 80)] == [3, 2]


def test_a_long_series_is_thinned_to_two_points_a_column() -> None:
    points = tuple((float(n), math.sin(n)) for n in range(50_000))
    assert sum(len(piece) for piece in prepared(points, 100)) <= 200


def test_a_series_of_gaps_draws_nothing() -> None:
    assert prepared(((1.0, math.nan), (2.0, math.inf)), 80) == []


def test_ticks_are_whole_steps_and_never_doubled() -> None:
    assert ticks_of(0, 180, 3, "step") == ([0, 90, 180], ["0", "90", "180"])
    assert ticks_of(1, 2, 6, "step")[0] == [1, 2]
    assert ticks_of(7, 7, 3, "step")[0] == [7]


def test_ticks_of_time_are_durations_and_those_of_logarithms_are_values() -> None:
    assert ticks_of(0, 7200, 3, "time") == ([0, 3600, 7200], ["0s", "1h00", "2h00"])
    assert value_ticks(0, 2, 3, log=True) == ([0, 1, 2], ["1.00", "10.00", "100.00"])


def test_colours_become_numbers() -> None:
    assert rgb("#62c6c2") == (0x62, 0xC6, 0xC2)
