"""Increments become news: nothing twice, nothing torn, nothing that a terminal would obey."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle3.core.records import MetricRow
from remote.follow import Follower, RowTable
from remote.text import plain


def reply(**files: dict[str, Any]) -> dict[str, Any]:
    names = {"metrics": "metrics.jsonl", "events": "events.jsonl", "log": "run.log", "progress": "progress.json"}
    return {"summary": {"run_id": "r", "state": "running"}, "files": {names[key]: part for key, part in files.items()}}


def lines(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text": "".join(json.dumps(row) + "\n" for row in rows), "token": {"offset": 1}, **more}


def row(step: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"v": 1, "attempt": attempt, "seq": step, "stage": "train", "step": step, **more}


def test_the_highest_attempt_wins_whatever_the_order() -> None:
    table = RowTable()
    older, newer = MetricRow(**row(5, 1, loss=2.0)), MetricRow(**row(5, 2, loss=1.0))
    assert table.add([older, newer]) == [older, newer]
    assert table.add([older]) == []
    assert [kept.loss for kept in table] == [1.0]


def test_rows_of_the_other_split_and_stage_stand_beside_each_other() -> None:
    table = RowTable()
    table.add([MetricRow(**row(1)), MetricRow(**row(1, split="val")), MetricRow(**{**row(1), "stage": "evaluate"})])
    assert len(table) == 3


def test_a_row_that_was_told_is_not_told_again() -> None:
    follower = Follower()
    assert len(follower.apply(reply(metrics=lines(row(1), row(2))), 10.0).rows) == 2
    assert follower.apply(reply(metrics=lines(row(2))), 11.0).rows == []


def test_a_file_that_began_anew_is_told_anew() -> None:
    follower = Follower()
    follower.apply(reply(metrics=lines(row(1), row(2))), 10.0)
    news = follower.apply(reply(metrics=lines(row(1), reset=True)), 11.0)
    assert news.reset == {"metrics.jsonl"}
    assert [kept.step for kept in news.rows] == [1]


def test_the_next_request_goes_on_where_the_last_reply_ended() -> None:
    follower = Follower()
    assert {entry["name"]: entry.get("token") for entry in follower.request()}["run.log"] is None
    follower.apply(reply(log={"text": "a\n", "token": {"ino": 3, "offset": 2}}), 1.0)
    assert {entry["name"]: entry.get("token") for entry in follower.request()}["run.log"] == {"ino": 3, "offset": 2}


def test_a_line_that_cannot_be_read_is_counted_and_the_rest_is_told() -> None:
    follower = Follower()
    part = {"text": '{"torn\n' + json.dumps(row(1)) + "\n[1, 2]\n", "token": None}
    news = follower.apply(reply(metrics=part, progress={"text": "{", "token": None}), 1.0)
    assert [kept.step for kept in news.rows] == [1]
    assert news.unreadable == 3
    assert news.progress is None


def test_fields_of_a_newer_version_are_passed_over() -> None:
    follower = Follower()
    news = follower.apply(reply(metrics=lines(row(1, temperature_of_the_sun=5772)), events=lines({"v": 9, "text": "hi"})), 1.0)
    assert news.rows[0].step == 1
    assert news.events[0].text == "hi"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;ZXZpbA==\x1b\\text", "text"),
        ("\x1bP1$r\x1b\\text", "text"),
        ("a\x9b31mb", "ab"),
        ("10%\r20%\r30%\nnext\r\n", "30%\nnext\n"),
        ("tab\tstays", "tab\tstays"),
        ("bell\x07 null\x00", "bell null"),
        ("token hf_abcdefghijkl", "token hf_[hidden]"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer [hidden]"),
        ("https://ada:secret@host/x", "https://[hidden]@host/x"),
        ("\x1b[", ""),
    ],
)
def test_text_from_the_far_side_is_made_harmless(raw: str, shown: str) -> None:
    assert plain(raw) == shown
