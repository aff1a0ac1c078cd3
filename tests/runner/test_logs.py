"""A log of any length is read page by page, searched and gone to by time, at the cost of what is shown."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import logs, logsearch, logtime
from eagle3.runner.errors import VerbError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "runs" / "r"
    (place / "attempts" / "1").mkdir(parents=True)
    (place / "logs").mkdir()
    return place


def write(run_dir: Path, content: bytes, name: str = "run.log") -> str:
    path = run_dir / "attempts" / "1" / name
    path.write_bytes(content)
    return f"attempts/1/{name}"


def page(run_dir: Path, name: str, at: int | str = "end", before: int = 0, after: int = 0) -> dict[str, Any]:
    return logs.log(run_dir, "page", {"name": name, "at": at, "before": before, "after": after})


def texts(found: dict[str, Any]) -> list[str]:
    return [line["text"] for line in found["lines"]]


def test_the_logs_of_a_run_are_listed_with_their_sizes(run_dir: Path) -> None:
    write(run_dir, b"abc\n")
    (run_dir / "attempts" / "2").mkdir()
    (run_dir / "attempts" / "2" / "run.log").write_bytes(b"")
    (run_dir / "logs" / "server-plain.log").write_bytes(b"x" * 10)
    found = [(f["name"], f["bytes"]) for f in logs.log(run_dir, "files", {})["files"]]
    assert found == [("attempts/2/run.log", 0), ("attempts/1/run.log", 4), ("logs/server-plain.log", 10)]


def test_the_end_is_shown_first_and_earlier_pages_join_it(run_dir: Path) -> None:
    name = write(run_dir, b"".join(b"line %d\n" % n for n in range(1000)))
    last = page(run_dir, name, "end", before=3)
    assert texts(last) == ["line 997", "line 998", "line 999"]
    assert last["end"] == last["size"]
    assert texts(page(run_dir, name, last["start"], before=2)) == ["line 995", "line 996"]
    assert texts(page(run_dir, name, last["start"], after=2)) == ["line 997", "line 998"]


def test_a_half_line_at_the_end_is_shown_as_it_is(run_dir: Path) -> None:
    name = write(run_dir, b"one\ntwo")
    assert texts(page(run_dir, name, "end", before=5, after=5)) == ["one", "two"]


def test_any_byte_leads_to_the_line_that_holds_it(run_dir: Path) -> None:
    name = write(run_dir, b"alpha\nbeta\ngamma\n")
    assert texts(page(run_dir, name, 8, before=1, after=1)) == ["alpha", "beta"]


@given(content=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=30), step=st.integers(1, 7))
def test_paging_forward_and_backward_shows_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], step: int
) -> None:
    run_dir = tmp_path_factory.mktemp("log") / "r"
    (run_dir / "attempts" / "1").mkdir(parents=True)
    name = write(run_dir, b"".join(line + b"\n" for line in content))
    at, forward = 0, []
    while (found := page(run_dir, name, at, after=step))["lines"]:
        forward += [line["at"] for line in found["lines"]]
        at = found["end"]
    at, backward = found["size"], []
    while (found := page(run_dir, name, at, before=step))["lines"]:
        backward = [line["at"] for line in found["lines"]] + backward
        at = found["start"]
    starts = [sum(len(line) + 1 for line in content[:n]) for n in range(len(content))]
    assert forward == backward == starts


def test_of_a_progress_line_only_the_end_is_shown_and_a_long_line_is_cut(run_dir: Path) -> None:
    progress = b"\r".join(b"%d%%" % n for n in range(100)) + b"\n"
    name = write(run_dir, progress + b"x" * 90_000 + b"\n")
    first, second = page(run_dir, name, 0, after=2)["lines"]
    assert first["text"] == "99%"
    assert (len(second["text"]), second["chars"]) == (logs.LINE_CHARS, 90_000)


def test_a_line_longer_than_a_reply_comes_in_pieces_and_paging_goes_on(run_dir: Path) -> None:
    name = write(run_dir, b"y" * (2 * logs.PAGE_BYTES + 10) + b"\nlast\n")
    at, pieces = 0, 0
    while (found := page(run_dir, name, at, after=1))["lines"]:
        at, pieces = found["end"], pieces + 1
    assert at == found["size"]
    assert pieces == 4
    assert texts(page(run_dir, name, "end", before=1)) == ["last"]


def test_bytes_that_are_not_utf8_are_shown_as_unknown_characters(run_dir: Path) -> None:
    name = write(run_dir, b"caf\xe9\n")
    assert texts(page(run_dir, name, 0, after=1)) == ["caf\ufffd"]


def test_matches_are_counted_and_those_around_the_reader_named(run_dir: Path) -> None:
    name = write(run_dir, b"".join(b"step %d %s\n" % (n, b"hit" if n % 10 == 0 else b"-") for n in range(100)))
    middle = page(run_dir, name, "end", before=50)["start"]
    found = logs.log(run_dir, "search", {"name": name, "pattern": r"H[ij]t$", "ignore_case": True, "at": middle})
    assert (found["total"], found["index"], len(found["before"]), len(found["after"])) == (10, 5, 5, 5)
    assert texts(page(run_dir, name, found["after"][0], after=1)) == ["step 50 hit"]
    assert found["scanned"] == (run_dir / name).stat().st_size


def test_the_first_error_is_found_by_its_level(run_dir: Path) -> None:
    content = b"INFO all well\nWARNING: hot\nTraceback (most recent call last):\n  File x\nRuntimeError: no\nINFO errors: 0\n"
    name = write(run_dir, content)
    found = logs.log(run_dir, "search", {"name": name, "pattern": "level:error", "at": 0})
    assert found["levels"] == {"error": 2, "warn": 1}
    assert texts(page(run_dir, name, found["after"][0], after=1)) == ["Traceback (most recent call last):"]


def test_the_workers_own_errors_and_warnings_are_found_by_their_level(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3.journal import Journal

    journal = Journal(run_dir, 1)
    journal.event("note", "A pack is too short.", level="warn")
    journal.event("failed", "train: The loss was not a number.", level="error")
    name = write(run_dir, capsys.readouterr().out.encode())
    found = logs.log(run_dir, "search", {"name": name, "pattern": "level:error", "at": 0})
    assert found["levels"] == {"error": 1, "warn": 1}
    assert texts(page(run_dir, name, found["after"][0], after=1))[0].endswith("[error] train: The loss was not a number.")
    assert logs.log(run_dir, "time", {"name": name, "text": "1h"}) == {"at": 0}


def test_a_broken_pattern_is_refused_in_words(run_dir: Path) -> None:
    name = write(run_dir, b"a\n")
    with pytest.raises(VerbError, match=r"'a\(' is not a pattern") as caught:
        logs.log(run_dir, "search", {"name": name, "pattern": "a("})
    assert caught.value.code == "usage" and caught.value.remedy


def test_a_pattern_that_never_ends_is_given_up(run_dir: Path) -> None:
    name = write(run_dir, b"a" * 60 + b"!\n")
    with pytest.raises(VerbError, match="given up"):
        logsearch.asked(run_dir / name, name, "(a+)+$", False, 0, limit_s=0.5)


def test_a_log_that_is_a_link_out_of_the_run_is_not_read(run_dir: Path) -> None:
    (run_dir / "logs" / "x.log").symlink_to("/etc/passwd")
    with pytest.raises(VerbError):
        page(run_dir, "logs/x.log")
    with pytest.raises(VerbError, match="cannot be searched"):
        logs.log(run_dir, "search", {"name": "logs/x.log", "pattern": "root"})
    with pytest.raises(VerbError, match="not a file of a run"):
        page(run_dir, "../../etc/passwd")


def _clock(t: float, form: str) -> bytes:
    return time.strftime(form, time.localtime(t)).encode()


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d %H:%M:%S,123 INFO x", "INFO %m-%d %H:%M:%S [core.py:1] x", "%m-%d %H:%M:%S train starts."]
)
def test_a_time_leads_to_the_first_line_not_older(run_dir: Path, form: str) -> None:
    newest = 1_764_496_800.0
    body = b"".join(_clock(newest - 600 + n, form) + b"\n  of which more\n" for n in range(600))
    name = write(run_dir, b"no time here\n" + body)
    os.utime(run_dir / name, (newest, newest))
    for said, back_s in (("5m", 300), (time.strftime("%H:%M:%S", time.localtime(newest - 77)), 77)):
        at = logs.log(run_dir, "time", {"name": name, "text": said})["at"]
        lines = page(run_dir, name, at, after=3)["lines"]
        assert _clock(newest - back_s, form).decode() in {line["text"] for line in lines}


def test_a_clock_time_later_than_the_log_is_yesterdays() -> None:
    newest = time.mktime((2025, 11, 30, 10, 0, 0, 0, 0, -1))
    assert logtime.said("23:00", newest) == newest - 11 * 3600
    assert logtime.said("10:00", newest) == newest
    assert logtime.said("2025-11-29 10:00", newest) == newest - 86400
    assert logtime.said("soon", newest) is None
    assert logtime.said("99:99", newest) is None


def test_a_december_line_read_in_january_is_last_years() -> None:
    newest = time.mktime((2026, 1, 1, 0, 5, 0, 0, 0, -1))
    assert logtime.of_line(b"INFO 12-31 23:59:00 x", newest) == newest - 360


def test_a_log_without_times_says_so(run_dir: Path) -> None:
    name = write(run_dir, b"nothing\n" * 10)
    with pytest.raises(VerbError, match="carry no day and time"):
        logs.log(run_dir, "time", {"name": name, "text": "5m"})
    with pytest.raises(VerbError, match="'x' is not a time"):
        logs.log(run_dir, "time", {"name": name, "text": "x"})


@given(content=st.binary(max_size=200), size=st.integers(1, 20))
def test_a_log_cut_into_chunks_is_the_same_log_and_no_line_is_cut(content: bytes, size: int) -> None:
    chunks = [chunk for _, chunk in logsearch.in_chunks(io.BytesIO(content), size)]
    assert b"".join(chunks) == content
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])


@given(
    lines=st.lists(st.sampled_from([b"INFO a", b"ERROR b", b"ValueError: c", b"an Error", b"", b"UserWarning: d"]), max_size=30)
)
def test_levels_are_the_same_however_the_log_is_cut(lines: list[bytes]) -> None:
    content = b"".join(line + b"\n" for line in lines)
    error = logsearch.compiled("level:error", False)
    expected = [sum(len(x) + 1 for x in lines[:n]) for n, line in enumerate(lines) if error.search(line)]
    for size in (7, 1000):
        found = logsearch.search(logsearch.in_chunks(io.BytesIO(content), size), error, 0)
        assert found["after"] == expected
        assert found["levels"] == {"error": len(expected), "warn": lines.count(b"UserWarning: d")}
