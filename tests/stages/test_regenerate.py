"""Answers are asked for once, kept through a kill, judged, and written as samples. The server is an edge fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import RunSpec
from eagle3.engines.completions import RequestFailed
from eagle3.engines.server import ServerDied
from eagle3.rows import read_rows, write_rows
from eagle3.stages import regenerate, unanswered
from eagle3.stages.context import StageContext, StageError, Stopped
from tests.stages.fake_vllm import FakeVllm, Reply, Script
from tests.stages.runs import context, rows
from tests.support.guards import the_guard

END = 1


class ToyTemplate:
    """One token a character, a 0 in front of each message."""

    @staticmethod
    def render(messages: Any) -> list[int]:
        return [token for message in messages for token in (0, *map(ord, message["content"]), END)] + [0]

    @staticmethod
    def end_ids() -> frozenset[int]:
        return frozenset({END})


TOY: Any = ToyTemplate()


def answer(body: Mapping[str, Any], said: str = "fine, thanks") -> Reply:
    choice = {"message": {"content": said}, "token_ids": [*map(ord, said), END], "finish_reason": "stop"}
    found = {"prompt_token_ids": ToyTemplate.render(body["messages"]), "choices": [choice]}
    return Reply(body=json.dumps(found).encode())


def friendly(number: int, body: Mapping[str, Any]) -> Reply:
    return answer(body)


def ask(ctx: StageContext, script: Script = friendly, template: Any = TOY) -> FakeVllm:
    """One attempt's asking; the fake, to look at what it was asked."""
    prompts = read_rows(ctx.run_dir / "data" / "prompts.jsonl")
    answers = regenerate.Answers(ctx, prompts)
    with FakeVllm(script) as server:
        asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, template))  # type: ignore[arg-type]
    return server


def finish(ctx: StageContext) -> dict[str, Any]:
    prompts = read_rows(ctx.run_dir / "data" / "prompts.jsonl")
    return regenerate.write_outputs(ctx, prompts, regenerate.Answers(ctx, prompts), TOY)


def prepared(run_dir: Path, **overrides: Any) -> StageContext:
    return context(run_dir, **overrides)


def test_every_prompt_becomes_a_conversation_and_a_sample(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    ask(ctx)
    figures = finish(ctx)
    conversations, samples = rows(tmp_path, "data/conversations.jsonl"), rows(tmp_path, "data/samples.jsonl")
    assert figures["prompts"] == len(conversations) == len(samples) == 9
    assert [sample["index"] for sample in samples] == list(range(9))
    assert conversations[0]["messages"][-1] == {"role": "assistant", "content": "fine, thanks"}
    assert all(sum(sample["loss_mask"]) == len("fine, thanks") + 1 for sample in samples)


def test_requests_carry_the_specs_temperature_and_never_exceed_its_concurrency(tmp_path: Path) -> None:
    server = ask(prepared(tmp_path, regenerate__temperature=0.7, regenerate__concurrency=2))
    assert {request["temperature"] for request in server.requests} == {0.7}
    assert server.most_in_flight <= 2


def test_a_chat_is_asked_turn_by_turn_with_the_targets_own_answers_between(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, heldout=8)
    file = tmp_path / "data" / "prompts.jsonl"
    row = {"id": "c", "kind": "chat", "split": "train", "hash": "c", "turns": ["Hi", "And?"], "system": "Be brief."}
    file.write_text(json.dumps(row) + "\n" + file.read_text())
    server = ask(ctx)
    longest = max((request["messages"] for request in server.requests), key=len)
    assert [message["content"] for message in longest] == ["Be brief.", "Hi", "fine, thanks", "And?"]
    finish(ctx)
    assert len(rows(tmp_path, "data/conversations.jsonl")[0]["messages"]) == 5


def test_a_server_with_another_template_ends_the_stage_at_its_first_answer(tmp_path: Path) -> None:
    asked = 0

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        nonlocal asked
        asked = max(asked, number)
        found = json.loads(answer(body).body)
        return Reply(body=json.dumps(found | {"prompt_token_ids": [7, *found["prompt_token_ids"]]}).encode())

    ctx = prepared(tmp_path, regenerate__concurrency=1)
    for _ in range(2):  # asked again, it is as early
        with pytest.raises(StageError, match=r"Prompt 'train-0': The server's prompt differs from the chat template .* token 0;"):
            ask(ctx, script)
    assert asked == 1, "nothing more was paid for"


def test_a_template_that_rewrites_earlier_turns_ends_the_stage_at_the_first_chat(tmp_path: Path) -> None:
    class Counting(ToyTemplate):
        @staticmethod
        def render(messages: Any) -> list[int]:
            return [len(messages), *ToyTemplate.render(messages)]

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        found = json.loads(answer(body).body)
        return Reply(body=json.dumps(found | {"prompt_token_ids": Counting.render(body["messages"])}).encode())

    ctx = prepared(tmp_path, regenerate__concurrency=1)
    file = tmp_path / "data" / "prompts.jsonl"
    row = {"id": "chat", "kind": "chat", "split": "train", "hash": "c", "turns": ["Hi", "And?"]}
    file.write_text(json.dumps(row) + "\n" + file.read_text())
    with pytest.raises(StageError, match="Prompt 'chat': The target's chat template rewrites earlier turns"):
        ask(ctx, script, template=Counting())


def test_a_resume_asks_only_for_what_is_missing_even_after_a_torn_row(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    ask(ctx)
    partial = tmp_path / "data" / "answers.part.jsonl"
    whole = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(whole[:6]) + whole[6][:20])
    assert len(ask(ctx).requests) == 9 - 5
    assert finish(ctx)["prompts"] == 9


@pytest.mark.parametrize("change", [{"regenerate__temperature": 0.5}, {"regenerate__max_new_tokens": 17}])
def test_answers_of_other_settings_are_not_reused(tmp_path: Path, change: dict[str, Any]) -> None:
    ask(prepared(tmp_path))
    assert len(ask(prepared(tmp_path, **change)).requests) == 9


def test_other_layers_or_evaluation_settings_ask_for_nothing_again(tmp_path: Path) -> None:
    ask(prepared(tmp_path))
    assert ask(prepared(tmp_path, target__auxiliary_layers=[3, 10, 20], evaluate__max_new_tokens=9)).requests == []


def test_a_partial_file_that_is_garbage_is_said_and_made_anew(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    (tmp_path / "data" / "answers.part.jsonl").write_bytes(b"\xff\xfe garbage\n")
    assert len(ask(ctx).requests) == 9
    assert "cannot be read" in (tmp_path / "events.jsonl").read_text()


def test_a_spoilt_line_among_the_answers_costs_that_answer_alone(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    ask(ctx)
    partial = tmp_path / "data" / "answers.part.jsonl"
    whole = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(whole[:4]) + whole[4][:20] + b"\n" + b"".join(whole[5:]))
    assert len(ask(ctx).requests) == 1
    assert finish(ctx)["prompts"] == 9


def test_a_prompt_that_the_server_refuses_is_left_out_and_said(tmp_path: Path) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Reply:
        too_long = "Never asked" in body["messages"][-1]["content"]
        return Reply(400, b'{"error": {"message": "prompt too long"}}') if too_long else answer(body)

    ctx = prepared(tmp_path)
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["A short one"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    ask(ctx, script)
    assert finish(ctx)["skipped"] == 1
    assert "refuses 1 prompts, 'train-0' first" in (tmp_path / "events.jsonl").read_text()


def test_a_passing_error_of_the_server_is_tried_again(tmp_path: Path) -> None:
    ask(prepared(tmp_path), lambda number, body: Reply(503) if number == 1 else answer(body))
    assert len(rows(tmp_path, "data/answers.part.jsonl")) == 1 + 9


def test_prompts_that_stay_without_an_answer_end_the_stage_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        return Reply(500, b"{}") if "sea in winter" in body["messages"][-1]["content"] else answer(body)

    ctx = prepared(tmp_path)
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
    ctx = prepared(tmp_path, guards__quarantined_share=0.15, evaluate__prompts=4)
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
    ctx = prepared(tmp_path, guards__quarantined_share=0.15)
    ask(ctx, breaks_at("sea in winter"))
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["Another one"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    with pytest.raises(StageError, match=r"1 of the prompts got no answer, 't' first"):
        ask(ctx, breaks_at("Another one"))


def test_no_prompt_is_put_aside_while_the_server_is_ill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.engines.completions._BACKOFF_S", 0.0)
    ctx = prepared(tmp_path, guards__quarantined_share=0.15)
    prompts = read_rows(tmp_path / "data" / "prompts.jsonl")
    answers = regenerate.Answers(ctx, prompts)
    with FakeVllm(breaks_at("sea in winter")) as server:
        server.health = 503
        with pytest.raises(StageError, match="1 of the prompts got no answer, 'held-3' first"):
            asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, TOY))  # type: ignore[arg-type]
    assert answers.failed() == 0


def test_a_suspect_is_said_to_have_been_alone_whatever_became_of_the_one_before_it(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
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
    ctx = prepared(tmp_path, guards__quarantined_share=0.5)
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
    ctx = prepared(tmp_path, guards__quarantined_share=0.5)
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
    ctx = prepared(tmp_path, guards__quarantined_share=0.5)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    guilty = answers.missing()[4]
    row = {"v": 1, "t": 0.0, "attempt": 1, "landed": 3}
    there = [{"index": guilty["index"], "id": guilty["id"], "ids": regenerate._key(guilty)}]
    write_rows(tmp_path / "data" / "deaths.jsonl", [row | {"in_flight": there}] * 3)
    server = ask(ctx)
    assert len(server.requests) == len(answers.missing()) - 1
    assert f"Prompt '{guilty['id']}' is left out: the server dies of it." in (tmp_path / "events.jsonl").read_text()


def test_a_stop_keeps_what_has_come(tmp_path: Path) -> None:
    stop = [False]

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        stop[0] = number >= 3
        return answer(body)

    ctx = prepared(tmp_path, regenerate__concurrency=1, stop_requested=lambda: stop[0])
    with pytest.raises(Stopped):
        ask(ctx, script)
    assert len(rows(tmp_path, "data/answers.part.jsonl")) > 1


def test_the_silence_before_a_cold_models_first_answer_is_announced_and_over_with_it(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, regenerate__request_timeout_s=1500, regenerate__concurrency=1)
    told: list[dict[str, Any]] = []

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        told.append(json.loads((tmp_path / "progress.json").read_text()))
        return answer(body)

    ask(ctx, script)
    assert told[0]["quiet_until"] - told[0]["t"] == 1500 and "first answers" in told[0]["reason"]
    assert json.loads((tmp_path / "progress.json").read_text())["quiet_until"] is None


def test_a_dead_server_ends_the_stage_at_once_with_its_own_reason(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    prompts = read_rows(tmp_path / "data" / "prompts.jsonl")
    answers = regenerate.Answers(ctx, prompts)
    with FakeVllm(lambda number, body: Reply(close=True)) as server:
        server.dead = "The plain vLLM server ended: out of memory."
        with pytest.raises(StageError, match="out of memory"):
            asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, TOY))  # type: ignore[arg-type]


def test_answers_that_repeat_one_token_are_said_and_kept_out_of_training_only(tmp_path: Path) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Reply:
        broken = any(word in body["messages"][-1]["content"] for word in ("bicycle", "Short"))
        return answer(body, "!" * 30 if broken else "fine, thanks")

    ctx = prepared(tmp_path, guards__repeated="warn")
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["Short"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    ask(ctx, script)
    figures = finish(ctx)
    assert (figures["repeating"], figures["dropped"], figures["prompts"]) == (2, 1, 10)
    assert [sample["id"] for sample in rows(tmp_path, "data/samples.jsonl") if sample["id"] in ("t", "held-1")] == ["held-1"]
    assert "2 of 10 answers repeat single tokens" in (tmp_path / "events.jsonl").read_text()


def test_a_run_with_nothing_left_to_train_on_is_an_error(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, guards__repeated="warn")
    ask(ctx, lambda number, body: answer(body, "!" * 30))
    with pytest.raises(StageError, match="None of the 9 answers can be trained on"):
        finish(ctx)


def test_a_server_that_refuses_everything_is_not_blamed_on_the_prompts_and_is_asked_again(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    refusal = Reply(400, b'{"error": {"message": "max_tokens is too large"}}')
    with pytest.raises(StageError, match=r"refuses every prompt.*max_tokens is too large.*server\.args"):
        ask(ctx, lambda number, body: refusal)
    assert len(ask(ctx).requests) == 9


def test_an_answer_that_is_no_json_is_asked_for_again(tmp_path: Path) -> None:
    server = ask(prepared(tmp_path), lambda number, body: Reply(body=b"<html>") if number == 1 else answer(body))
    assert len(server.requests) == 10


def test_a_server_that_answers_in_repeated_tokens_ends_the_stage(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    with pytest.raises(StageError, match="are runs of repeated tokens"):
        ask(ctx, lambda number, body: answer(body, "!" * 30))
    assert "The server at http://127.0.0.1:" in (tmp_path / "events.jsonl").read_text()
    assert len(ask(ctx).requests) >= 8, "a resume asks for them again"
    event = the_guard(rows(tmp_path, "events.jsonl"), "repeated-tokens")
    assert event["guard"]["threshold"] == 0.1 and event["guard"]["counts"]["answers"] >= 8


def test_samples_that_the_loss_cannot_see_are_a_guards_event(tmp_path: Path) -> None:
    # Prompts longer than what a sample may hold: their answers are cut away, whole.
    ctx = prepared(tmp_path, target__max_model_len=52, evaluate__prompts=4)
    ask(ctx)
    assert finish(ctx)["skipped"] >= 1
    event = the_guard(rows(tmp_path, "events.jsonl"), "zero-mask")
    assert event["guard"]["threshold"] == 0.2 and event["guard"]["counts"]["samples"] == 9
    assert "Check the chat template" in event["text"]


def test_samples_longer_than_a_pack_are_said_as_soon_as_they_are_made_and_end_the_stage_where_none_is_left(
    tmp_path: Path,
) -> None:
    ctx = prepared(tmp_path)
    ask(ctx)
    finish(ctx)
    assert not (tmp_path / "events.jsonl").exists()
    lengths = [len(sample["input_ids"]) for sample in rows(tmp_path, "data/samples.jsonl") if sample["split"] == "train"]
    longest = max(lengths)
    ctx.spec = spec_with(ctx, pack_tokens=longest - 1)
    finish(ctx)
    assert (
        f"{lengths.count(longest)} of {len(lengths)} train samples are longer than a pack of {longest - 1} tokens"
        in (tmp_path / "events.jsonl").read_text()
    )
    ctx.spec = spec_with(ctx, pack_tokens=8)
    with pytest.raises(StageError, match=rf"All {len(lengths)} train samples have their answers beyond the first 8 tokens"):
        finish(ctx)


def spec_with(ctx: StageContext, **train: int) -> RunSpec:
    return ctx.spec.model_copy(update={"train": ctx.spec.train.model_copy(update=train)})


def test_a_target_whose_tokenizer_cannot_be_loaded_is_not_waited_for(tmp_path: Path) -> None:
    ctx = context(tmp_path / "run")
    loads_for_ever = tmp_path / "python"
    loads_for_ever.write_text("#!/bin/sh\nexec sleep 600\n")
    loads_for_ever.chmod(0o755)
    ctx.server_python, ctx.model_dir = str(loads_for_ever), tmp_path
    with pytest.raises(StageError, match=r"The tokenizer in .* cannot be loaded"):
        regenerate.run(ctx)
    assert not (ctx.run_dir / "servers" / "plain.json").exists(), "the server's record goes with it"
