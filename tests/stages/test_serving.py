"""Measuring a running server: against one that behaves, and against one that dies, hangs, or answers nonsense."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.acceptance import between
from eagle3.stages import baseline, evaluate, measuring
from eagle3.stages.context import StageError, Stopped
from eagle3.stages.serving import (
    heldout_prompts,
    measure_load,
    measure_single_stream,
    server_versions,
    settled_counters,
    warm_up,
)
from tests.stages.fake_vllm import ACCEPTED_A_REQUEST, DRAFTS_A_REQUEST, FakeVllm, Reply, completion
from tests.stages.runs import context, rows


def no_sleep(_: float) -> None:
    """Polling without waiting."""


def test_all_prompts_are_answered_at_the_asked_concurrency_and_their_tokens_counted(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def wait_for_four(number: int, body: Mapping[str, Any]) -> None:
        together.wait(timeout=30)

    ctx = context(tmp_path, evaluate__concurrency=4, evaluate__max_new_tokens=12)
    with FakeVllm(wait_for_four) as server:
        done: list[int] = []
        load = measure_load(ctx, server, heldout_prompts(ctx, 8), done.append)
    assert (load.requests, load.tokens, load.ended_early) == (8, 96, 0)
    assert server.most_in_flight == 4
    assert done == list(range(1, 9))
    assert load.tok_s == pytest.approx(load.tokens / load.wall_s)


def test_every_request_is_greedy_ends_where_the_answer_ends_and_shares_a_salt_of_its_measurement(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with FakeVllm() as server:
        measure_load(ctx, server, heldout_prompts(ctx, 8))
        measure_load(ctx, server, heldout_prompts(ctx, 8))
    assert {request["temperature"] for request in server.requests} == {0}
    assert not any(request.get("ignore_eos") for request in server.requests)
    first, second = ({request["cache_salt"] for request in half} for half in (server.requests[:8], server.requests[8:]))
    assert len(first) == len(second) == 1
    assert first != second


def test_only_held_out_prompts_are_asked_in_the_order_of_the_file(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    assert [prompt.id for prompt in heldout_prompts(ctx, 3)] == ["held-0", "held-1", "held-2"]


def test_too_few_held_out_prompts_are_named(tmp_path: Path) -> None:
    ctx = context(tmp_path, heldout=5)
    with pytest.raises(StageError, match=r"holds 5 held-out prompts with an answer and evaluate\.prompts asks for 8"):
        heldout_prompts(ctx, 8)


def test_an_answer_that_comes_byte_by_byte_has_no_more_time_than_any(tmp_path: Path) -> None:
    ctx = context(tmp_path, regenerate__request_timeout_s=0.5)
    with (
        FakeVllm(lambda number, body: Reply(body=json.dumps(completion(body)).encode(), drips=4.0)) as server,
        pytest.raises(StageError, match=r"did not answer prompt held-0 within 0 s \(regenerate\.request_timeout_s\)"),
    ):
        measure_load(ctx, server, heldout_prompts(ctx, 1))


def test_a_missing_prompts_file_is_named(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    (tmp_path / "data" / "prompts.jsonl").unlink()
    with pytest.raises(StageError, match=r"prompts\.jsonl is missing; resume the run"):
        heldout_prompts(ctx, 8)


def test_single_stream_has_one_request_in_flight_and_keeps_ids_and_log_probabilities(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with FakeVllm() as server:
        answers = measure_single_stream(ctx, server, heldout_prompts(ctx, 3), 5)
    assert server.most_in_flight == 1
    assert [answer.prompt_id for answer in answers] == ["held-0", "held-1", "held-2"]
    for answer in answers:
        assert len(answer.token_ids) == len(answer.tokens) == len(answer.logprobs) == len(answer.top) == 5
        assert answer.top[0] == {answer.tokens[0]: -0.5, " or": -2.0}


def test_a_server_that_answers_500_is_told_with_the_prompt_and_its_own_words(tmp_path: Path) -> None:
    def fail_the_third(number: int, body: Mapping[str, Any]) -> Reply | None:
        return Reply(500, b'{"error": {"message": "EngineCore encountered an issue."}}') if number == 3 else None

    ctx = context(tmp_path, evaluate__concurrency=1)
    with FakeVllm(fail_the_third) as server, pytest.raises(StageError) as told:
        measure_load(ctx, server, heldout_prompts(ctx, 8))
    assert "prompt held-2 with status 500 (EngineCore encountered an issue.)" in str(told.value)
    assert "server-draft.log" in str(told.value)


def test_a_server_that_dies_mid_way_is_told_by_the_reason_of_its_death(tmp_path: Path) -> None:
    def die(number: int, body: Mapping[str, Any]) -> Reply | None:
        if number < 4:
            return None
        server.dead = "The draft vLLM server ended by signal 9 while it was working."
        return Reply(close=True)

    ctx = context(tmp_path, evaluate__concurrency=2)
    with FakeVllm(die) as server, pytest.raises(StageError, match="ended by signal 9"):
        measure_load(ctx, server, heldout_prompts(ctx, 8))
    assert len(server.requests) < 8, "the first failure ends the measurement"


def test_a_cut_connection_to_a_living_server_says_how_far_it_came(tmp_path: Path) -> None:
    ctx = context(tmp_path, evaluate__concurrency=1)
    said = "stopped answering at prompt held-2, after 2 of 8 answers"
    with FakeVllm(lambda n, body: Reply(close=True) if n == 3 else None) as server, pytest.raises(StageError, match=said):
        measure_load(ctx, server, heldout_prompts(ctx, 8))


def test_a_server_that_hangs_is_told_with_the_limit(tmp_path: Path) -> None:
    release = threading.Event()

    def hang(number: int, body: Mapping[str, Any]) -> None:
        release.wait(timeout=60)

    ctx = context(tmp_path, regenerate__request_timeout_s=0.2)
    with FakeVllm(hang) as server:
        try:
            with pytest.raises(StageError, match=r"within 0 s \(regenerate.request_timeout_s\)"):
                measure_load(ctx, server, heldout_prompts(ctx, 2))
        finally:
            release.set()


@pytest.mark.parametrize("body", [b"<html>a proxy</html>", b'{"choices": []}', b'{"choices": [{"finish_reason": "stop"}]}'])
def test_an_answer_that_is_no_completion_is_told(tmp_path: Path, body: bytes) -> None:
    ctx = context(tmp_path)
    with FakeVllm(lambda n, request: Reply(body=body)) as server, pytest.raises(StageError, match="no chat completion"):
        measure_load(ctx, server, heldout_prompts(ctx, 1))


def test_an_answer_without_tokens_is_told(tmp_path: Path) -> None:
    ctx = context(tmp_path)

    def nothing(number: int, request: Mapping[str, Any]) -> Reply:
        return Reply(body=json.dumps(completion(request, tokens=0)).encode())

    said = r"broke off its answer to prompt held-0 \(length, 0 tokens\)"
    with FakeVllm(nothing) as server, pytest.raises(StageError, match=said):
        measure_load(ctx, server, heldout_prompts(ctx, 1))


def test_a_server_too_old_to_give_token_ids_is_told(tmp_path: Path) -> None:
    def without_ids(number: int, request: Mapping[str, Any]) -> Reply:
        body = completion(request)
        del body["choices"][0]["token_ids"]
        return Reply(body=json.dumps(body).encode())

    ctx = context(tmp_path)
    with FakeVllm(without_ids) as server, pytest.raises(StageError, match="needs vLLM"):
        measure_single_stream(ctx, server, heldout_prompts(ctx, 1), 4)


def test_a_stop_ends_the_measurement(tmp_path: Path) -> None:
    with FakeVllm() as server:
        ctx = context(tmp_path, evaluate__concurrency=1, stop_requested=lambda: len(server.requests) >= 2)
        with pytest.raises(Stopped):
            measure_load(ctx, server, heldout_prompts(ctx, 8))
    assert len(server.requests) == 2


def test_the_counters_are_taken_once_they_have_settled_and_the_warm_up_is_in_no_figure(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with FakeVllm(late_steps=1) as server:
        warm_up(ctx, server, heldout_prompts(ctx, 8))
        before = settled_counters(server, sleep=no_sleep)
        measure_load(ctx, server, heldout_prompts(ctx, 8))
        found = between(before, settled_counters(server, sleep=no_sleep))
    assert found.drafts == 8 * DRAFTS_A_REQUEST
    assert found.accepted_per_pos == tuple(8 * n for n in ACCEPTED_A_REQUEST)
    assert found.problems() == []


def test_answers_that_contradict_the_counters_are_told_and_no_interval_rests_on_them(tmp_path: Path) -> None:
    own = {"metrics": {"speculative_decoding": {"acceptance_histogram": [5, 5, 0, 0], "num_draft_tokens": 30}}}

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        return Reply(body=json.dumps(completion(body) | own).encode())

    ctx = context(tmp_path)
    with FakeVllm(script, tells_each=True) as server:
        found = measuring.measure(ctx, server, heldout_prompts(ctx, 8))
    assert (found.acceptance.drafts, found.acceptance.independent, found.kinds) == (8 * DRAFTS_A_REQUEST, None, {})
    [event] = [row for row in rows(tmp_path, "events.jsonl") if row["kind"] == "counters"]
    assert "80 drafts and 40 accepted tokens, the server's counters of 80 and 56" in event["text"]


def test_each_answers_seconds_are_those_from_its_request_to_its_end(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    first, others_ended = heldout_prompts(ctx, 4)[0], threading.Event()

    def slow(number: int, body: Mapping[str, Any]) -> None:
        """The first prompt is sent first; its answer ends after all others."""
        assert body["messages"][-1]["content"] != first.text or others_ended.wait(60)

    def on_done(count: int) -> None:
        if count == 3:
            others_ended.set()

    with FakeVllm(slow) as server:
        load = measure_load(ctx, server, heldout_prompts(ctx, 4), on_done, concurrency=4)
    assert [tokens for tokens, _ in load.each] == [32] * 4
    assert load.each[0][1] == max(seconds for _, seconds in load.each), "the slow one is the first prompt's"
    assert load.to_json()["each"][0] == [32, round(load.each[0][1], 3)]


def test_counters_that_never_settle_mean_that_someone_else_uses_the_server() -> None:
    ticks = iter(range(0, 1000, 3))
    with FakeVllm() as server:
        server.restless = True
        with pytest.raises(StageError, match="find who else uses it"):
            settled_counters(server, sleep=no_sleep, clock=lambda: float(next(ticks)))


def test_a_server_without_a_draft_cannot_be_evaluated() -> None:
    with FakeVllm(speculative=False) as server, pytest.raises(StageError, match="was not started with a draft"):
        settled_counters(server, sleep=no_sleep)


def test_the_version_is_that_of_the_server_that_answers() -> None:
    with FakeVllm() as server:
        assert server_versions(server) == {"vllm": "9.9.9"}
    assert server_versions(server) == {}


def test_the_baseline_is_on_disk_whole_and_is_found_again_until_the_settings_change(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    assert baseline.load(ctx) is None
    with FakeVllm(speculative=False) as server:
        found = baseline.measure(ctx, server)
    assert baseline.load(ctx) == found
    assert found["tok_s_no_draft"] > 0
    assert [answer.prompt_id for answer in baseline.answers_of(found)] == ["held-0", "held-1", "held-2", "held-3"]
    assert baseline.load(context(tmp_path, evaluate__min_drafts=7, evaluate__num_speculative_tokens=5)) == found
    assert baseline.load(context(tmp_path, evaluate__concurrency=2)) is None
    assert baseline.load(context(tmp_path, evaluate__max_new_tokens=31)) is None


def test_a_baseline_that_fails_leaves_no_file(tmp_path: Path) -> None:
    ctx = context(tmp_path)

    def fail_late(number: int, body: Mapping[str, Any]) -> Reply | None:
        return Reply(503, b"overloaded") if number == 13 else None

    with FakeVllm(fail_late) as server, pytest.raises(StageError, match=r"status 503 \(overloaded\)"):
        baseline.measure(ctx, server)
    assert not (tmp_path / baseline.FILE).exists()


def test_the_draft_is_measured_against_the_baseline_and_progress_ends_at_its_total(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with FakeVllm(speculative=False) as server:
        plain = baseline.measure(ctx, server)
    with FakeVllm() as server:
        found = evaluate.measure_draft(ctx, server, plain)
    assert list(found.levels) == [8]
    assert found.levels[8].acceptance.drafts == 8 * DRAFTS_A_REQUEST
    assert found.levels[8].load.requests == 8
    assert (found.lossless.identical, found.lossless.of) == (4, 4)
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["stage"], progress["done"], progress["total"]) == ("evaluate", 12, 12)
    assert [event["kind"] for event in rows(tmp_path, "events.jsonl")] == ["baseline"]


@pytest.mark.parametrize("what", ["a stop", "the server's death"])
def test_neither_a_stop_nor_a_death_waits_for_a_request_that_hangs(tmp_path: Path, what: str) -> None:
    release = threading.Event()

    def hang(number: int, body: Mapping[str, Any]) -> None:
        release.wait(timeout=60)

    with FakeVllm(hang) as server:

        def stop_requested() -> bool:
            return what == "a stop" and server.in_flight > 0

        def die() -> None:
            if what == "the server's death" and server.in_flight > 0:
                raise StageError("The draft vLLM server ended by signal 9.")

        server.check_alive = die  # type: ignore[method-assign]
        ctx = context(tmp_path, stop_requested=stop_requested)
        try:
            with pytest.raises(Stopped if what == "a stop" else StageError):
                measure_load(ctx, server, heldout_prompts(ctx, 8))
            assert not release.is_set()
        finally:
            release.set()


def with_prompt(run_dir: Path, **more: Any) -> None:
    """Put one more held-out prompt in front of the others."""
    file = run_dir / "data" / "prompts.jsonl"
    row = {"id": "odd", "kind": "user", "split": "heldout", "hash": "odd", "turns": ["A plain question?"], **more}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n" + file.read_text())


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_prompt_may_hold_what_unicode_calls_a_line_end(tmp_path: Path, separator: str) -> None:
    ctx = context(tmp_path)
    with_prompt(tmp_path, turns=[f"One{separator}two?"])
    assert heldout_prompts(ctx, 1)[0].text == f"One{separator}two?"


def test_a_system_message_is_asked_with_its_prompt_as_in_training(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with_prompt(tmp_path, system="Be brief.")
    with FakeVllm() as server:
        measure_load(ctx, server, heldout_prompts(ctx, 1))
    assert [message["role"] for message in server.requests[0]["messages"]] == ["system", "user"]


def test_a_prompt_that_the_target_refused_to_answer_is_not_asked_again(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    with_prompt(tmp_path, turns=["far too long"])
    conversations = [{"hash": str(number)} for number in range(8)]
    (tmp_path / "data" / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations))
    assert [prompt.id for prompt in heldout_prompts(ctx, 2)] == ["held-0", "held-1"]


def test_a_request_that_the_server_refuses_names_the_settings_to_change(tmp_path: Path) -> None:
    refusal = Reply(400, b'{"error": {"message": "The maximum context length is 512 tokens."}}')
    with (
        FakeVllm(lambda n, body: refusal) as server,
        pytest.raises(StageError, match=r"context length.*raise target\.max_model_len"),
    ):
        measure_load(context(tmp_path), server, heldout_prompts(context(tmp_path), 1))
