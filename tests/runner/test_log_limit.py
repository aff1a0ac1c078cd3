"""A worker that prints without end does not fill the disk, and who follows its log is never led astray."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import increments, log_limit, logs
from eagle3.runner.launch import launch
from eagle3.runner.log_limit import LogLimit
from tests.runner.support import events, wait_end, wait_for

LIMIT_BYTES = 1 << 20
LINE = b"%07d " + b"x" * 119 + b"\n"
"""128 bytes."""


def on_disk(file: Path) -> int:
    return file.stat().st_blocks * 512


def write_lines(file: Path, first: int, last: int) -> None:
    with file.open("ab") as log:
        for number in range(first, last):
            log.write(LINE % number)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "attempts/1").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def log(run_dir: Path) -> Path:
    return run_dir / "attempts/1/run.log"


def follow(run_dir: Path, token: increments.Token | None = None) -> tuple[str, increments.Token | None, bool]:
    """All that a follower gets until there is no more: the text, where it is then, and whether it was sent back to the start."""
    text, reset, more = "", False, True
    while more:
        found = increments.read(run_dir, "run.log", token, 100_000, False, False)
        token, more = found["token"], found["more"]
        text, reset = text + found["text"], reset or found["reset"]
    return text, token, reset


def numbers(text: str) -> list[int]:
    return [int(line[:7]) for line in text.splitlines() if line[:7].isdigit() and len(line) == 127]


def test_a_log_of_a_run_that_never_stops_printing_stays_small_and_the_run_goes_on(workspace: Path) -> None:
    script = "import sys\nfor i in range(80_000): sys.stdout.write(f'{i:07d} ' + 'x' * 119 + '\\n')\nprint('the last word')"
    plan = {"argv": [sys.executable, "-S", "-c", script], "log_limit_bytes": LIMIT_BYTES, "heartbeat_s": 0.1, "grace_s": 0.5}
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    assert wait_end(run_dir)["code"] == 0
    log = run_dir / "attempts/1/run.log"
    wait_for(lambda: "log_limit" in (run_dir / "events.jsonl").read_text())
    wait_for(lambda: on_disk(log) <= LIMIT_BYTES)
    assert log.stat().st_size == 80_000 * 128 + len("the last word\n"), "every byte has its place"
    assert log.read_bytes().endswith(b"the last word\n")
    [event] = events(run_dir, "log_limit")
    assert event["level"] == "warn" and "run.log has grown over 1 MiB" in event["text"]


def test_a_reader_from_the_start_gets_the_beginning_a_word_about_the_gap_and_the_end(run_dir: Path, log: Path) -> None:
    write_lines(log, 0, 40_000)
    level, text = LogLimit(LIMIT_BYTES).check([log]) or ("", "")
    assert level == "warn" and on_disk(log) <= LIMIT_BYTES
    text, _, reset = follow(run_dir)
    found = numbers(text)
    assert found[0] == 0 and found[-1] == 39_999 and not reset and "\0" not in text
    gap = [(a, b) for a, b in itertools.pairwise(found) if b != a + 1]
    assert len(gap) == 1, "one gap, and no line twice or out of order"
    assert text.count("bytes were taken out here") == 1
    kept = sum(len(line) + 1 for line in text.splitlines())
    assert LIMIT_BYTES / 2 < kept < LIMIT_BYTES


def test_a_follower_at_the_end_notices_nothing(run_dir: Path, log: Path) -> None:
    limit = LogLimit(LIMIT_BYTES)
    token, seen = None, []
    for begin in range(0, 40_000, 2_000):
        write_lines(log, begin, begin + 2_000)
        limit.check([log])
        text, token, reset = follow(run_dir, token)
        seen += numbers(text)
        assert not reset and on_disk(log) <= LIMIT_BYTES
    assert seen == list(range(40_000))


def test_a_follower_that_was_away_goes_on_behind_the_gap_and_not_from_the_start(run_dir: Path, log: Path) -> None:
    write_lines(log, 0, 6_000)
    _, token, _ = follow(run_dir)
    write_lines(log, 6_000, 60_000)
    LogLimit(LIMIT_BYTES).check([log])
    text, token, reset = follow(run_dir, token)
    found = numbers(text)
    assert not reset and found[0] > 6_000 and found[-1] == 59_999 and found == list(range(found[0], 60_000))
    assert follow(run_dir, token)[0] == ""


def test_a_pager_turns_over_the_gap_both_ways_and_a_search_does_not_read_it(run_dir: Path, log: Path) -> None:
    write_lines(log, 0, 40_000)
    LogLimit(LIMIT_BYTES).check([log])

    def page(at: object, **more: int) -> dict[str, Any]:
        return logs.log(run_dir, "page", {"name": "run.log", "at": at, **more})

    forward, at = list[int](), 0
    while at < log.stat().st_size:
        found = page(at, after=400)
        forward += numbers("\n".join(line["text"] for line in found["lines"]))
        assert found["end"] > at
        at = found["end"]
    assert forward == sorted(set(forward)) and (forward[0], forward[-1]) == (0, 39_999) and len(forward) < 9_000
    backward, at = list[int](), log.stat().st_size
    while at > 0:
        found = page(at, before=400)
        backward += reversed(numbers("\n".join(line["text"] for line in found["lines"])))
        assert found["start"] < at
        at = found["start"]
    assert backward == forward[::-1]
    search = logs.log(run_dir, "search", {"name": "run.log", "pattern": "^00(00000|39999) "})
    assert search["total"] == 2 and search["after"] == [0, 39_999 * 128]


def test_a_log_is_told_of_once_and_small_ones_are_left_alone(run_dir: Path, log: Path) -> None:
    limit = LogLimit(LIMIT_BYTES)
    write_lines(log, 0, 1_000)
    before = log.read_bytes()
    assert limit.check([log, run_dir / "missing.log"]) is None and log.read_bytes() == before
    write_lines(log, 1_000, 40_000)
    assert limit.check([log]) is not None
    write_lines(log, 40_000, 80_000)
    assert limit.check([log]) is None and on_disk(log) <= LIMIT_BYTES


def test_where_holes_cannot_be_made_it_is_an_error_that_names_the_log(
    run_dir: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(log, 0, 40_000)
    before = log.read_bytes()
    monkeypatch.setattr(log_limit, "_PUNCH_HOLE", 1 << 20)  # a mode that no kernel knows, as an old file system
    level, text = LogLimit(LIMIT_BYTES).check([log]) or ("", "")
    assert level == "error" and "run.log" in text and "may fill the disk" in text and os.strerror(95) in text
    assert log.read_bytes() == before
