"""How values are said."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.run_states import LIVE_STATES, RESUMABLE_STATES
from tui import formats
from tui.formats import told_apart


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never closed", ""),
        ("a\x00b\x07c\x9bd", "abcd"),
        ("[/red] [bold]", "[/red] [bold]"),
        ("10%\r20%\r30%", "30%"),
        ("10%\r20%\r", "20%"),
        ("right\u202eleft", "rightleft"),
        ("a\tb", "a   b"),
    ],
)
def test_remote_lines_are_made_harmless(raw: str, shown: str) -> None:
    assert formats.clean_line(raw) == shown


def test_a_line_of_ninety_thousand_characters_is_cut() -> None:
    assert len(formats.clean_line("x" * 90_000)) == 500


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in formats.clean_line(text))


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [(0.4, "0 s", "0s"), (59.4, "59 s", "59s"), (185, "3 min 05 s", "3m05"), (7800, "2 h 10 min", "2h10"),
     (357_000, "4 d 3 h", "4d3h"), (None, "–", "–"), (math.nan, "–", "–"), (-3, "0 s", "0s")],
)  # fmt: skip
def test_durations(seconds: float | None, long: str, short: str) -> None:
    assert (formats.duration_label(seconds), formats.short_duration(seconds)) == (long, short)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "never"), (0.2, "now"), (12, "12 s ago"), (180, "3 min ago"), (7200, "2 h ago"), (500_000, "6 d ago")],
)
def test_ages(seconds: float | None, words: str) -> None:
    assert formats.age_label(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(None, "–"), (0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (141 << 30, "141 GiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes(count: int | None, words: str) -> None:
    assert formats.bytes_label(count) == words


def test_a_pair_of_amounts_shares_the_unit() -> None:
    assert formats.pair_label(96 << 30, 141 << 30) == "96 / 141 GiB"
    assert formats.pair_label(None, 141 << 30) == "– / 141 GiB"


@pytest.mark.parametrize(
    ("rate", "words"),
    [(None, ""), (12.42, "12.4 steps/s"), (812.0, "812 steps/s"), (0.8, "1.2 s per step"), (0.01, "1 min 40 s per step")],
)  # fmt: skip
def test_rates_are_said_so_that_they_can_be_read(rate: float | None, words: str) -> None:
    assert formats.rate_label(rate, "steps") == words


def test_a_bar_shows_a_little_where_there_is_a_little() -> None:
    assert formats.bar(0.001, 10) == ("━", "─" * 9)
    assert formats.bar(0.0, 10) == ("", "─" * 10)
    assert formats.bar(None, 4) == ("", "────")
    assert formats.bar(1.0, 4) == ("━━━━", "")


def test_every_state_has_a_word_and_a_symbol_of_its_own() -> None:
    assert set(formats.STATE_WORDS) >= LIVE_STATES | RESUMABLE_STATES | {"finished"}
    assert len({symbol for symbol, _ in formats.STATE_WORDS.values()}) == len(formats.STATE_WORDS)


def test_texts_that_are_cut_still_differ_where_they_do() -> None:
    assert told_apart(["run-a", "run-b"], 9) == ["run-a", "run-b"]
    assert told_apart(["pilot-llama-8b-1801", "pilot-qwen3-8b-1801"], 12) == ["pilot-llama…", "pilot-qwen3…"]
    assert told_apart(["pilot-smollm2-135m-1801", "pilot-smollm2-135m-1802"], 14) == ["pilot-smo…1801", "pilot-smo…1802"]
    assert told_apart(["same", "same"], 3) == ["sa…", "sa…"]
    assert told_apart(["a" * 30 + "b" + "a" * 30, "a" * 30 + "c" + "a" * 30], 8) == ["…baaaaa…", "…caaaaa…"]


@given(st.lists(st.text("ab-", min_size=1, max_size=30), min_size=2, max_size=6), st.integers(8, 24))
def test_different_texts_never_look_alike_and_none_is_too_long(texts: list[str], width: int) -> None:
    cut = told_apart(texts, width)
    assert max(map(len, cut)) <= width and len(set(cut)) == len(set(texts))
    assert all((a == b) == (x == y) for a, x in zip(texts, cut, strict=True) for b, y in zip(texts, cut, strict=True))
