"""Prompts that no server can answer, and those that one dies of, are left out by name; a server that is ill condemns none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3.engines.completions import RequestFailed
from eagle3.engines.server import ServerDied
from eagle3.rows import read_rows, write_rows
from eagle3.stages import regenerate, unanswered
from eagle3.stages.context import StageError
from tests.stages.fake_vllm import FakeVllm, Reply, Script
from tests.stages.regenerating import ask, finish
from tests.stages.runs import context, rows
from tests.stages.toy import TOY, answer


def test_a_prompt_that_the_server_refuses_is_left_out_and_said(tmp_path: Path) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Reply:
        too_long = "Never asked" in body["messages"][-1]["content"]
        return Reply(400, b'{"error": {"message": "prompt too long"}}') if too_long else answer(body)

    ctx = context(tmp_path)
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["A short one"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    ask(ctx, script)
    assert finish(ctx)["skipped"] == 1
    assert "refuses 1 prompts, 'train-0' first" in (tmp_path / "events.jsonl").read_text()


def test_a_passing_error_of_the_server_is_tried_again(tmp_path: Path) -> None:
    ask(context(tmp_path), lambda number, body: Reply(503) if number == 1 else answer(body))
    assert len(rows(tmp_path, "data/answers.part.jsonl")) == 1 + 9


def test_prompts_that_stay_without_an_answer_end_the_stage_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        return Reply(500, b"{}") if "sea in winter" in body["messages"][-1]["content"] else answer(body)

    ctx = context(tmp_path)
    with pytest.raises(
        StageError, match=r"1 of the prompts got no answer, 'held-3' first \(the server at http://127.* status 500.*tried 4 times"
    ):
        ask(ctx, script)
    assert len(ask(ctx).requests) == 1


def breaks_at(words: str) -> Script:
    return lambda number, body: Reply(500, b"{}") if words in body["messages"][-1]["content"] else answer(body)


def test_a_prompt_that_no_server_can_answer_is_put_aside_by_name_and_the_stage_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)
    ctx = context(tmp_path, guards__quarantined_share=0.15, evaluate__prompts=4)
    ask(ctx, breaks_at("sea in winter"))
    (told,) = [row for row in rows(tmp_path, "events.jsonl") if row["kind"] == "data"]
    assert "lives and gives no answer to 1 prompts, 'held-3' first; they are left out" in told["text"]
    assert "held-3: the server at http://127" in told["detail"] and "status 500" in told["detail"]
    figures = finish(ctx)
    assert (figures["prompts"], figures["skipped"]) == (8, 1)
    assert "held-3" not in [row["id"] for row in rows(tmp_path, "data/samples.jsonl")]
    assert ask(ctx).requests == [], "a resume does not wait for it again"


def test_what_was_put_aside_in_an_earlier_attempt_counts_in_the_share_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)
    ctx = context(tmp_path, guards__quarantined_share=0.15)
    ask(ctx, breaks_at("sea in winter"))
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["Another one"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    with pytest.raises(StageError, match=r"1 of the prompts got no answer, 't' first"):
        ask(ctx, breaks_at("Another one"))


def test_no_prompt_is_put_aside_while_the_server_is_ill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)
    ctx = context(tmp_path, guards__quarantined_share=0.15)
    prompts = read_rows(tmp_path / "data" / "prompts.jsonl")
    answers = regenerate.Answers(ctx, prompts)
    with FakeVllm(breaks_at("sea in winter")) as server:
        server.health = 503
        with pytest.raises(StageError, match="1 of the prompts got no answer, 'held-3' first"):
            asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, TOY))  # type: ignore[arg-type]
    assert answers.failed() == 0


def test_a_suspect_is_said_to_have_been_alone_whatever_became_of_the_one_before_it(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    killers = unanswered.Killers(ctx, answers, regenerate._key, dying_s=0.0)

    async def fails(prompts: list[dict[str, Any]]) -> None:
        """All of them are with the server when it breaks off."""
        with contextlib.suppress(RequestFailed):
            async with contextlib.AsyncExitStack() as there:
                for prompt in prompts:
                    await there.enter_async_context(killers.watching(prompt))
                raise RequestFailed("status 500")

    for _ in range(2):
        asyncio.run(fails(answers.missing()[:2]))
        assert not killers.died()

    async def ask_all() -> None:
        asked = [(some, at_once) async for some, at_once in with_failures()]
        assert [(len(some), at_once) for some, at_once in asked] == [(len(answers.missing()) - 2, 2), (1, 1), (1, 1)]

    async def with_failures() -> AsyncIterator[tuple[list[dict[str, Any]], int]]:
        async for some, at_once in killers.turns(answers.missing(), 2, lambda: None):
            if at_once == 1:
                await fails(some)
            yield some, at_once

    asyncio.run(ask_all())
    killers.died()
    assert [len(row["in_flight"]) for row in rows(tmp_path, "data/deaths.jsonl")] == [2, 2, 1]


def test_a_server_that_takes_seconds_to_die_of_one_suspect_is_not_said_to_die_of_the_next(tmp_path: Path) -> None:
    ctx = context(tmp_path, guards__quarantined_share=0.5)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    killers = regenerate.killers_of(ctx, answers)
    killer, innocent, third = answers.missing()[:3]
    answers.add(third, {"messages": [], "turns": []})
    looks = 0

    def watch() -> None:
        """It answers errors for a while, and then is gone."""
        nonlocal looks
        looks += 1
        if looks == 3:
            raise ServerDied("The server is gone.")

    async def with_it(*prompts: dict[str, Any]) -> None:
        with contextlib.suppress(RequestFailed):
            async with contextlib.AsyncExitStack() as there:
                for prompt in prompts:
                    await there.enter_async_context(killers.watching(prompt))
                raise RequestFailed("status 500: EngineDeadError")

    async def ask_all() -> None:
        async for some, at_once in killers.turns([killer, innocent], 2, watch):
            if at_once == 1:
                await with_it(*some)

    for _ in range(2):
        asyncio.run(with_it(killer, innocent))
        killers.died()
    with pytest.raises(ServerDied):
        asyncio.run(ask_all())
    assert killers.died()
    assert [one["id"] for one in rows(tmp_path, "data/deaths.jsonl")[-1]["in_flight"]] == [killer["id"]]
    assert innocent in answers.missing() and killer not in answers.missing()


def test_a_server_that_dies_whatever_it_is_asked_condemns_no_prompt_after_prompt(tmp_path: Path) -> None:
    ctx = context(tmp_path, guards__quarantined_share=0.5)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    killers = regenerate.killers_of(ctx, answers)
    some = answers.missing()[:3]
    answers.add(answers.missing()[5], {"messages": [], "turns": []})

    async def with_it(*prompts: dict[str, Any]) -> None:
        async with contextlib.AsyncExitStack() as there:
            for prompt in prompts:
                await there.enter_async_context(killers.watching(prompt))
            raise RequestFailed("cut")

    for prompts in (some, some, *([prompt] for prompt in some)):
        with contextlib.suppress(RequestFailed):
            asyncio.run(with_it(*prompts))
        explained = killers.died()
    assert not explained and answers.failed() == 1, "the first alone; what is put aside is no answer, and clears no server"


def test_a_prompt_that_was_found_guilty_by_an_attempt_that_ended_then_is_left_out_by_the_next(tmp_path: Path) -> None:
    ctx = context(tmp_path, guards__quarantined_share=0.5)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    guilty = answers.missing()[4]
    row = {"v": 1, "t": 0.0, "attempt": 1, "landed": 3}
    there = [{"index": guilty["index"], "id": guilty["id"], "ids": regenerate._key(guilty)}]
    write_rows(tmp_path / "data" / "deaths.jsonl", [row | {"in_flight": there}] * 3)
    server = ask(ctx)
    assert len(server.requests) == len(answers.missing()) - 1
    assert f"Prompt '{guilty['id']}' is left out: the server dies of it." in (tmp_path / "events.jsonl").read_text()
