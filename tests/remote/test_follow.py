"""Increments become news: nothing twice, nothing torn, nothing that a terminal would obey."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest

from eagle3.core.records import MetricRow
from remote.follow import Follower, Thinned, Told
from remote.text import plain


def reply(**files: dict[str, Any]) -> dict[str, Any]:
    names = {"metrics": "metrics.jsonl", "events": "events.jsonl", "log": "run.log", "result": "result.json"}
    summary = {"is": "a1", "value": {"run_id": "r", "state": "running"}}
    return {"summary": summary, "files": {names[key]: part for key, part in files.items()}}


def tokens(follower: Follower) -> dict[str, Any]:
    return {entry["name"]: entry["token"] for entry in follower.request()["files"]}


def lines(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text": "".join(json.dumps(row) + "\n" for row in rows), "token": {"offset": 1}, **more}


def row(step: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"v": 1, "attempt": attempt, "seq": step, "stage": "train", "step": step, **more}


def test_the_highest_attempt_wins_whatever_the_order() -> None:
    told = Told()
    older, newer = MetricRow(**row(5, 1, loss=2.0)), MetricRow(**row(5, 2, loss=1.0))
    assert told.news([older, newer]) == [older, newer]
    assert told.news([older]) == []


def test_rows_of_the_other_split_and_stage_stand_beside_each_other() -> None:
    told = Told()
    rows = [MetricRow(**row(1)), MetricRow(**row(1, split="val")), MetricRow(**{**row(1), "stage": "evaluate"})]
    assert told.news(rows) == rows and told.news(rows) == [] and told.count == 3


def test_following_for_weeks_keeps_no_row() -> None:
    follower = Follower()
    first = follower.apply(reply(metrics=lines(*(row(step) for step in range(50)))), 1.0).rows
    kept = [weakref.ref(one) for one in first]
    del first
    gc.collect()
    assert not any(one() for one in kept)
    assert follower.apply(reply(metrics=lines(row(49), row(50))), 2.0).rows[0].step == 50


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
    assert tokens(follower)["run.log"] is None
    follower.apply(reply(log={"text": "a\n", "token": {"ino": 3, "offset": 2}}), 1.0)
    assert tokens(follower)["run.log"] == {"ino": 3, "offset": 2}
    follower.apply(reply(), 2.0)
    assert tokens(follower)["run.log"] == {"ino": 3, "offset": 2}
    follower.apply(reply(log={"missing": True, "reset": True}), 3.0)
    assert tokens(follower)["run.log"] is None


def test_a_line_that_cannot_be_read_is_counted_and_the_rest_is_told() -> None:
    follower = Follower()
    part = {"text": '{"torn\n' + json.dumps(row(1)) + "\n[1, 2]\n", "token": None}
    news = follower.apply(reply(metrics=part, result={"text": "{", "token": None}), 1.0)
    assert [kept.step for kept in news.rows] == [1]
    assert news.unreadable == 3
    assert news.result is None


def test_a_result_is_told_with_every_news_and_sent_only_once() -> None:
    follower = Follower()
    whole = {"text": json.dumps({"verdict": "learns"}, indent=1), "token": {"size": 9, "hash": "x"}}
    for part in ({"result": whole}, {}, {}):
        news = follower.apply(reply(**part), 1.0)
        assert news.result is not None and news.result.verdict == "learns"
    assert tokens(follower)["result.json"] == {"size": 9, "hash": "x"}
    assert follower.apply(reply(result={"missing": True, "reset": True}), 2.0).result is None


def test_an_answer_that_builds_on_another_changes_nothing_and_the_next_question_asks_for_all() -> None:
    follower = Follower()
    follower.apply(reply(), 1.0)
    assert follower.request()["held"] == "a1"
    strange = {
        "summary": {"is": "b2", "from": "b1", "change": None},
        "files": {"run.log": {"text": "a\n", "token": {"offset": 2}}},
    }
    with pytest.raises(ValueError, match="not held"):
        follower.apply(strange, 2.0)
    assert follower.request()["held"] is None
    assert tokens(follower)["run.log"] is None


def test_a_thinned_backlog_drops_what_a_later_attempt_repeated_and_says_for_how_many_rows_it_stands() -> None:
    follower = Follower()
    rows = [row(10), row(100), row(200), row(120, 2), row(180, 2)]
    news = follower.apply(reply(metrics=lines(*rows, thinned={"rows": 5000, "kept": 5, "hasty": False})), 1.0)
    assert [(kept.attempt, kept.step) for kept in news.rows] == [(1, 10), (1, 100), (1, 200), (2, 120), (2, 180)]
    between = [row(10), row(150), row(120, 2), row(180, 2)]
    again = Follower().apply(reply(metrics=lines(*between, thinned={"rows": 70, "kept": 4, "hasty": True})), 1.0)
    assert [(kept.attempt, kept.step) for kept in again.rows] == [(1, 10), (2, 120), (2, 180)]
    assert news.thinned == Thinned(5000, 5) and again.thinned == Thinned(70, 3, hasty=True)
    later = follower.apply(reply(metrics=lines(row(181, 2))), 2.0)
    assert later.thinned == Thinned(5001, 6)
    assert follower.apply(reply(metrics=lines(row(1), reset=True)), 3.0).thinned is None


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
