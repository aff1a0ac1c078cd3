"""What a plot draws before it is drawn: pieces, ticks, colours."""

from __future__ import annotations

import math

from tui.widgets.plot import Line, prepared, rgb, step_ticks


def test_a_series_is_drawn_in_the_pieces_between_its_gaps() -> None:
    points = tuple((float(n), math.nan if n == 3 else float(n)) for n in range(6))
    assert [len(piece) for piece in prepared(Line(points, "#ffffff"), 80)] == [3, 2]


def test_a_long_series_is_thinned_to_two_points_a_column() -> None:
    points = tuple((float(n), math.sin(n)) for n in range(50_000))
    assert sum(len(piece) for piece in prepared(Line(points, "#ffffff"), 100)) <= 200


def test_a_series_of_gaps_draws_nothing() -> None:
    assert prepared(Line(((1.0, math.nan), (2.0, math.inf)), "#ffffff"), 80) == []


def test_ticks_are_whole_steps_and_never_doubled() -> None:
    assert step_ticks(0, 180, 3) == [0, 90, 180]
    assert step_ticks(1, 2, 6) == [1, 2]
    assert step_ticks(7, 7, 3) == [7]


def test_colours_become_numbers() -> None:
    assert rgb("#62c6c2") == (0x62, 0xC6, 0xC2)
