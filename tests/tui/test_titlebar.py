"""The title: where one is and how the link stands, whatever else is to be said there."""

from __future__ import annotations

import time

import pytest

from tui.state import LinkState
from tui.widgets.titlebar import TABS, right_words, title_for

UP = LinkState("up", 1_764_496_800.0)


def title(columns: int, *notes: str, link: LinkState = UP, here: str = "run", now: float = UP.since) -> str:
    tabs, words = title_for(here, columns, right_words(link, notes, now))
    left = "".join(key + label for key, _, label in tabs)
    assert len(left) + len(words) <= columns
    return f"{left}{words:>{columns - len(left)}}"


@pytest.mark.parametrize("notes", [("recording",), ("read-only",), ("held",), ("replay",), ("read-only", "recording")])
def test_a_note_takes_the_time_first_and_the_labels_last(notes: tuple[str, ...]) -> None:
    assert "since" in title(118, *notes), "there is room for all"
    said = title(78, *notes)
    assert all(label in said for _, _, label in TABS) and "● up" in said and "since" not in said


def test_a_link_that_is_up_since_another_day_names_it() -> None:
    day = time.strftime("%b %d", time.localtime(UP.since))
    assert f"● up since {day} " in title(78, now=UP.since + 2 * 86400) and day not in title(78)


def test_many_notes_leave_the_beginnings_of_the_labels() -> None:
    said = title(78, "held", "read-only", "recording")
    assert all(label[:4] in said for _, _, label in TABS) and "held · r/o · rec · ● up" in said


def test_since_when_a_link_is_gone_is_worth_more_than_labels() -> None:
    assert "✗ down since" in title(78, "recording", link=LinkState("down", UP.since))


def test_without_a_note_the_time_stays_and_where_one_is_is_whole_at_any_width() -> None:
    assert "since" in title(78) and "2 Readiness" in title(78)
    assert "Run" in title(40) and "2 Re" not in title(40)


@pytest.mark.parametrize("here", [name for _, name, _ in TABS])
@pytest.mark.parametrize("columns", [34, 36, 38])
def test_on_a_small_screen_no_since_stands_without_its_time(here: str, columns: int) -> None:
    said = title(columns, here=here)
    assert "● up" in said
    assert not said.endswith("since")
