"""Answers are asked for once, kept through a kill, judged, and written as samples. The server is an edge fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import RunSpec
from eagle3.rows import read_rows
from eagle3.stages import regenerate
from eagle3.stages.context import StageContext, StageError, Stopped
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.regenerating import ask, finish
from tests.stages.runs import context, rows
from tests.stages.toy import TOY, ToyTemplate, answer
from tests.support.guards import the_guard


def test_every_prompt_becomes_a_conversation_and_a_sample(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ask(ctx)
    figures = finish(ctx)
    conversations, samples = rows(tmp_path, "data/conversations.jsonl"), rows(tmp_path, "data/samples.jsonl")
    assert figures["prompts"] == len(conversations) == len(samples) == 9
    assert [sample["index"] for sample in samples] == list(range(9))
    assert conversations[0]["messages"][-1] == {"role": "assistant", "content": "fine, thanks"}
    assert all(sum(sample["loss_mask"]) == len("fine, thanks") + 1 for sample in samples)


def test_requests_carry_the_specs_temperature_and_never_exceed_its_concurrency(tmp_path: Path) -> None:
    server = ask(context(tmp_path, regenerate__temperature=0.7, regenerate__concurrency=2))
    assert {request["temperature"] for request in server.requests} == {0.7}
    assert server.most_in_flight <= 2


def test_a_chat_is_asked_turn_by_turn_with_the_targets_own_answers_between(tmp_path: Path) -> None:
    ctx = context(tmp_path, heldout=8)
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

    ctx = context(tmp_path, regenerate__concurrency=1)
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

    ctx = context(tmp_path, regenerate__concurrency=1)
    file = tmp_path / "data" / "prompts.jsonl"
    row = {"id": "chat", "kind": "chat", "split": "train", "hash": "c", "turns": ["Hi", "And?"]}
    file.write_text(json.dumps(row) + "\n" + file.read_text())
    with pytest.raises(StageError, match="Prompt 'chat': The target's chat template rewrites earlier turns"):
        ask(ctx, script, template=Counting())


def test_a_resume_asks_only_for_what_is_missing_even_after_a_torn_row(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ask(ctx)
    partial = tmp_path / "data" / "answers.part.jsonl"
    whole = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(whole[:6]) + whole[6][:20])
    assert len(ask(ctx).requests) == 9 - 5
    assert finish(ctx)["prompts"] == 9


@pytest.mark.parametrize("change", [{"regenerate__temperature": 0.5}, {"regenerate__max_new_tokens": 17}])
def test_answers_of_other_settings_are_not_reused(tmp_path: Path, change: dict[str, Any]) -> None:
    ask(context(tmp_path))
    assert len(ask(context(tmp_path, **change)).requests) == 9


def test_other_layers_or_evaluation_settings_ask_for_nothing_again(tmp_path: Path) -> None:
    ask(context(tmp_path))
    assert ask(context(tmp_path, target__auxiliary_layers=[3, 10, 20], evaluate__max_new_tokens=9)).requests == []


def test_a_partial_file_that_is_garbage_is_said_and_made_anew(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    (tmp_path / "data" / "answers.part.jsonl").write_bytes(b"\xff\xfe garbage\n")
    assert len(ask(ctx).requests) == 9
    assert "cannot be read" in (tmp_path / "events.jsonl").read_text()


def test_a_spoilt_line_among_the_answers_costs_that_answer_alone(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ask(ctx)
    partial = tmp_path / "data" / "answers.part.jsonl"
    whole = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(whole[:4]) + whole[4][:20] + b"\n" + b"".join(whole[5:]))
    assert len(ask(ctx).requests) == 1
    assert finish(ctx)["prompts"] == 9


def test_a_stop_keeps_what_has_come(tmp_path: Path) -> None:
    stop = [False]

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        stop[0] = number >= 3
        return answer(body)

    ctx = context(tmp_path, regenerate__concurrency=1, stop_requested=lambda: stop[0])
    with pytest.raises(Stopped):
        ask(ctx, script)
    assert len(rows(tmp_path, "data/answers.part.jsonl")) > 1


def test_the_silence_before_a_cold_models_first_answer_is_announced_and_over_with_it(tmp_path: Path) -> None:
    ctx = context(tmp_path, regenerate__request_timeout_s=1500, regenerate__concurrency=1)
    told: list[dict[str, Any]] = []

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        told.append(json.loads((tmp_path / "progress.json").read_text()))
        return answer(body)

    ask(ctx, script)
    assert told[0]["quiet_until"] - told[0]["t"] == 1500 and "first answers" in told[0]["reason"]
    assert json.loads((tmp_path / "progress.json").read_text())["quiet_until"] is None


def test_a_dead_server_ends_the_stage_at_once_with_its_own_reason(tmp_path: Path) -> None:
    ctx = context(tmp_path)
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

    ctx = context(tmp_path, guards__repeated="warn")
    file = tmp_path / "data" / "prompts.jsonl"
    more = {"id": "t", "kind": "k", "split": "train", "hash": "t", "turns": ["Short"]}
    file.write_text(file.read_text() + json.dumps(more) + "\n")
    ask(ctx, script)
    figures = finish(ctx)
    assert (figures["repeating"], figures["dropped"], figures["prompts"]) == (2, 1, 10)
    assert [sample["id"] for sample in rows(tmp_path, "data/samples.jsonl") if sample["id"] in ("t", "held-1")] == ["held-1"]
    assert "2 of 10 answers repeat single tokens" in (tmp_path / "events.jsonl").read_text()


def test_a_run_with_nothing_left_to_train_on_is_an_error(tmp_path: Path) -> None:
    ctx = context(tmp_path, guards__repeated="warn")
    ask(ctx, lambda number, body: answer(body, "!" * 30))
    with pytest.raises(StageError, match="None of the 9 answers can be trained on"):
        finish(ctx)


def test_a_server_that_refuses_everything_is_not_blamed_on_the_prompts_and_is_asked_again(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    refusal = Reply(400, b'{"error": {"message": "max_tokens is too large"}}')
    with pytest.raises(StageError, match=r"refuses every prompt.*max_tokens is too large.*server\.args"):
        ask(ctx, lambda number, body: refusal)
    assert len(ask(ctx).requests) == 9


def test_an_answer_that_is_no_json_is_asked_for_again(tmp_path: Path) -> None:
    server = ask(context(tmp_path), lambda number, body: Reply(body=b"<html>") if number == 1 else answer(body))
    assert len(server.requests) == 10


def test_a_server_that_answers_in_repeated_tokens_ends_the_stage(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with pytest.raises(StageError, match="are runs of repeated tokens"):
        ask(ctx, lambda number, body: answer(body, "!" * 30))
    assert "The server at http://127.0.0.1:" in (tmp_path / "events.jsonl").read_text()
    assert len(ask(ctx).requests) >= 8, "a resume asks for them again"
    event = the_guard(rows(tmp_path, "events.jsonl"), "repeated-tokens")
    assert event["guard"]["threshold"] == 0.1 and event["guard"]["counts"]["answers"] >= 8


def test_samples_that_the_loss_cannot_see_are_a_guards_event(tmp_path: Path) -> None:
    # Prompts longer than what a sample may hold: their answers are cut away, whole.
    ctx = context(tmp_path, target__max_model_len=52, evaluate__prompts=4)
    ask(ctx)
    assert finish(ctx)["skipped"] >= 1
    event = the_guard(rows(tmp_path, "events.jsonl"), "zero-mask")
    assert event["guard"]["threshold"] == 0.2 and event["guard"]["counts"]["samples"] == 9
    assert "Check the chat template" in event["text"]


def test_samples_longer_than_a_pack_are_said_as_soon_as_they_are_made_and_end_the_stage_where_none_is_left(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path)
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
