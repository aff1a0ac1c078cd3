"""Logs: of any length, followed, searched, gone to by time; the reader's place is theirs; remote text is text."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events
from textual.widgets import Input

from eagle3.core.records import LogFile, LogPage, LogSearch
from eagle3.runner import logs
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run
from tui.reading import WINDOW_LINES, LogAsk, Reading
from tui.screens.logs import found_line

SIZES = [(80, 24), (120, 40)]
RUN_LOG = "attempts/1/run.log"


def answer(run: Path, reading: Reading, ask: LogAsk, height: int) -> None:
    """What the container would say to ``ask``."""
    args = {"name": ask.name, "at": ask.at, "before": ask.before, "after": ask.after}
    reading.take_page(ask, LogPage.model_validate(logs.log(run, "page", args)), 1.0, height)


def settle(run: Path, reading: Reading, height: int, *, poll: bool = False) -> None:
    while ask := reading.wanted(height, poll=poll):
        answer(run, reading, ask, height)
        poll = False


def log_of(tmp_path: Path, content: bytes) -> Path:
    run = tmp_path / "run"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / RUN_LOG).write_bytes(content)
    return run


def opened(run: Path, height: int = 10) -> Reading:
    reading = Reading("run", files=[LogFile(name=RUN_LOG)])
    answer(run, reading, reading.open(RUN_LOG), height)
    settle(run, reading, height)
    return reading


def in_sight(reading: Reading, height: int = 10) -> list[str]:
    return [line.text for line in reading.visible(height)]


def test_a_log_opens_at_its_end_and_follows_what_is_written(tmp_path: Path) -> None:
    run = log_of(tmp_path, b"".join(b"line %d\n" % n for n in range(5000)))
    reading = opened(run)
    assert in_sight(reading)[-1] == "line 4999" and len(in_sight(reading)) == 10
    with (run / RUN_LOG).open("ab") as file:
        file.write(b"line 5000\nhalf")
    settle(run, reading, 10, poll=True)
    assert in_sight(reading)[-2:] == ["line 5000", "half"]
    with (run / RUN_LOG).open("ab") as file:
        file.write(b" and whole\n")
    settle(run, reading, 10, poll=True)
    assert in_sight(reading)[-2:] == ["line 5000", "half and whole"]


def test_a_reader_who_scrolled_up_stays_where_they_are(tmp_path: Path) -> None:
    run = log_of(tmp_path, b"".join(b"line %d\n" % n for n in range(100)))
    reading = opened(run)
    reading.scroll(-30, 10)
    before = in_sight(reading)
    with (run / RUN_LOG).open("ab") as file:
        file.writelines(b"more %d\n" % n for n in range(100))
    settle(run, reading, 10, poll=True)
    assert in_sight(reading) == before and not reading.following


def test_a_log_that_begins_anew_is_shown_anew(tmp_path: Path) -> None:
    run = log_of(tmp_path, b"".join(b"line %d\n" % n for n in range(100)))
    reading = opened(run)
    (run / RUN_LOG).write_bytes(b"fresh\n")
    settle(run, reading, 10, poll=True)
    settle(run, reading, 10, poll=True)
    assert in_sight(reading) == ["fresh"]


@settings(deadline=None, max_examples=40)
@given(moves=st.lists(st.integers(-400, 400), min_size=1, max_size=25), height=st.integers(1, 40))
def test_wherever_one_scrolls_the_lines_in_sight_are_the_logs_and_the_window_stays_small(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int], height: int
) -> None:
    lines = [f"line {n}" for n in range(8000)]
    run = log_of(tmp_path_factory.mktemp("log"), "".join(line + "\n" for line in lines).encode())
    reading = opened(run, height)
    place = len(lines) - height
    for move in moves:
        reading.scroll(10 * move, height)
        settle(run, reading, height)
        shown = in_sight(reading, height)
        first = lines.index(shown[0])
        assert shown == lines[first : first + height]
        assert len(reading.lines) <= WINDOW_LINES
        place = first
    assert 0 <= place <= len(lines)


def test_matches_are_walked_one_by_one_and_counted() -> None:
    reading = Reading("run", name=RUN_LOG, top=50)
    found = LogSearch(total=6, index=3, before=[10, 20], after=[60, 70])
    assert reading.take_search(LogAsk("search", RUN_LOG, text="x"), found) == 60
    assert reading.search is not None and reading.search.position == 4
    assert reading.next_match(True) == 70
    reading.search.current = 70
    further = reading.next_match(True)
    assert isinstance(further, LogAsk) and further.at == 71
    reading.search.current = 10
    earlier = reading.next_match(False)
    assert isinstance(earlier, LogAsk) and earlier.place == "earlier" and earlier.at == 10


def test_a_log_that_has_grown_since_it_was_searched_is_searched_on_in_the_same_way() -> None:
    reading = Reading("run", name=RUN_LOG, top=50, size=100)
    ask = reading.look_for("Epoch")
    assert not ask.ignore_case, "capitals are meant as they are"
    reading.take_search(ask, LogSearch(total=1, before=[], after=[60]))
    assert reading.next_match(True) is None and "when it was searched" not in found_line(reading).plain
    reading.size = 180
    assert "1 of 1 when it was searched" in found_line(reading).plain
    further = reading.next_match(True)
    assert isinstance(further, LogAsk) and (further.at, further.ignore_case) == (61, False)
    reading.take_search(further, LogSearch(total=0))
    assert reading.next_match(True) is None, "nothing has been written since"


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_error_of_a_long_log_is_two_keys_away(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    run = write_run(container.root, "run-a", "failed")
    body = [f"INFO step {n}" for n in range(20_000)]
    body[12_345] = "ValueError: hidden size 576 is not 1024"
    body[15_000] = "ERROR the second one"
    (run / RUN_LOG).write_text("\n".join(body) + "\n")
    async with make_app(run_id="run-a").run_test(size=size) as pilot:
        await until_seen(pilot, "✗ failed")
        await pilot.press("6")
        await until_seen(pilot, "INFO step 19999", "follows")
        await pilot.press("exclamation_mark")
        screen = await until_seen(pilot, "▸ ValueError: hidden size 576 is not 1024", "INFO step 12344", "INFO step 12346")
        assert "error lines: 1 of 2" in screen and "stays put" in screen
        await pilot.press("n")
        await until_seen(pilot, "▸ ERROR the second one", "2 of 2")
        await pilot.press("G")
        await until_seen(pilot, "INFO step 19999", "follows")


async def test_a_pattern_is_searched_from_the_place_on_and_mistakes_are_told(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    (run / RUN_LOG).write_text("".join(f"step {n} loss {n % 7}\n" for n in range(300)))
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        await until_seen(pilot, "step 299 loss 5")
        await pilot.press("home")
        await until_seen(pilot, "step 0 loss 0")
        await pilot.press("slash", *"LOSS 3$", "enter")
        await until_seen(pilot, "No 'LOSS 3$' in this log.")
        await pilot.press("slash", *"loss 3$", "enter")
        await until_seen(pilot, "▸ step 3 loss 3", "'loss 3$': 1 of 43")
        await pilot.press("n", "n", "N")
        await until_seen(pilot, "▸ step 10 loss 3", "2 of 43")
        await pilot.press("slash", *"a(", "enter")
        await until_seen(pilot, "'a(' is not a pattern")
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.screen.query_one("#ask").display, "the field to go")
        assert "step 10 loss 3" in seen(pilot.app)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "wrong", "refusal", "more"),
    [("slash", "a(", "'a(' is not a pattern", "pq)"), ("t", "9:", "'9:' is not a time", "05")],
)
async def test_a_field_stays_with_what_was_refused_in_it_until_it_is_mended_and_its_letters_are_no_keys(
    container: FakeContainer, make_app: MakeApp, key: str, wrong: str, refusal: str, more: str
) -> None:
    run = write_run(container.root, "run-a")
    (run / RUN_LOG).write_text("".join(f"INFO 11-30 09:{n:02d}:00 [x.py] ready {n} apq\n" for n in range(20)))
    app = make_app(run_id="run-a")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        await until_seen(pilot, "ready 19", "apq")
        screen = app.screen
        await pilot.press(key, *wrong, "enter")
        await until_seen(pilot, refusal)
        field = screen.query_one("#ask-input", Input)
        await pilot.press(*more)
        assert (app.screen, app.focused, field.value) == (screen, field, wrong + more), "what is typed next is text"
        await pilot.press("enter")
        await until(pilot, lambda: not screen.query_one("#ask").display, "the field to go with a good answer")
        assert refusal not in seen(app)


async def test_a_field_is_still_there_when_the_terminals_window_comes_back(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    app = make_app(run_id="run-a")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        for place, key, selector in (("6", "slash", "#ask-input"), ("5", "slash", "#filter-input")):
            await pilot.press(place)
            await until_seen(pilot, "step 61" if place == "6" else "live first")
            await pilot.press(key, *"ab")
            app.post_message(events.AppBlur())
            await until(pilot, lambda: app.focused is None, "the focus to go")
            app.post_message(events.AppFocus())
            await pilot.press("p")
            await until(pilot, lambda s=selector: app.screen.query_one(s, Input).value == "abp", "the text")  # type: ignore[misc]
            await pilot.press("escape")


async def test_other_logs_and_times_are_reached_by_a_key(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    (run / "logs").mkdir()
    (run / "logs" / "server-plain.log").write_text("".join(f"INFO 11-30 09:{n:02d}:00 [x.py] ready {n}\n" for n in range(60)))
    written = time.mktime((2025, 11, 30, 10, 0, 0, 0, 0, -1))
    os.utime(run / "logs" / "server-plain.log", (written, written))
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        await until_seen(pilot, "attempts/1/run.log (1 of 2)")
        await pilot.press("right_square_bracket")
        await until_seen(pilot, "logs/server-plain.log (2 of 2)", "ready 59")
        await pilot.press("t", *"09:20", "enter")
        screen = await until_seen(pilot, "ready 20")
        assert "ready 59" not in screen
        await pilot.press("t", *"soon", "enter")
        await until_seen(pilot, "'soon' is not a time")
        await pilot.press("escape", "G", "t", *"later", "enter")
        await until_seen(pilot, "'later' is not a time")
        with (run / "logs" / "server-plain.log").open("a") as file:
            file.write("INFO 11-30 10:01:00 [x.py] one more\n")
        await until_seen(pilot, "one more", "'later' is not a time")  # what came since does not wipe the answer away


async def test_the_end_of_a_log_is_in_sight_however_long_its_lines_are(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    (run / RUN_LOG).write_text("".join(f"line {n} {'long ' * 40}\n" for n in range(40)) + "the last word\n")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        screen = await until_seen(pilot, "line 39", "the last word", "follows")
        assert "line 25" in screen and "…" in screen


async def test_hostile_and_endless_lines_are_only_text(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a")
    hostile = b"[bold red]markup[/] \x1b]52;c;ZXZpbA==\x07\x1b[2Jcleared \xe2\x80\xaeltr\n" + b"z" * 90_000 + b"\n"
    progress = b"\r".join(b"%d%%" % n for n in range(101)) + b"\n"
    (run / RUN_LOG).write_bytes(hostile + progress)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        screen = await until_seen(pilot, "[bold red]markup[/] cleared ltr", "100%")
        assert "99%" not in screen
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", screen)
        await pilot.press("w")
        await until_seen(pilot, "(90,000 characters)")


async def test_a_lost_link_keeps_the_picture_and_says_how_old_it_is(
    container: FakeContainer, make_app: MakeApp, clock: object
) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("6")
        await until_seen(pilot, "step 61 loss", "follows · now")
        container.down = "The link is lost."
        clock.now += 30  # type: ignore[attr-defined]
        await until_seen(pilot, "step 61 loss", "stale · follows · 30 s ago", "The link is lost.")


async def test_without_a_run_the_screen_says_what_to_do(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await pilot.press("6", "slash", "n", "G", "f", "w", "exclamation_mark", "down")
        await until_seen(pilot, "No run is open.")
