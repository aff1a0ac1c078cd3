"""A vLLM that is there already: asked before it is relied on, refused in a sentence where it cannot, and never stopped."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from eagle3.engines.asking_given import layer_ids
from eagle3.engines.choice import answering_server, extraction_server, measured_server
from eagle3.engines.completions import Completions, RequestFailed
from eagle3.engines.deaths import Deaths
from eagle3.rows import read_rows, write_rows
from eagle3.stages import extract, landing, regenerate
from eagle3.stages.context import StageContext, StageError
from tests.stages.extraction import sample
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.runs import context, rows
from tests.stages.toy import TOY, answer
from tests.support.guards import of_guard
from tests.support.ports import held_port
from tests.support.waiting import until

LAYERS = [2, 15, 27, 30]


def friendly(number: int, body: Mapping[str, Any]) -> Reply:
    return answer(body, "hm") if "messages" in body else Reply(400, b'{"error": {"message": "no chat here"}}')


def with_url(run_dir: Path, server: FakeVllm, **more: Any) -> StageContext:
    return context(run_dir, server__url=server.base_url, **more)


def extracting(folder: Path, *, layers: int = 4, cached: bool = False, named: str = "", named_from: int = 1) -> Any:
    """What a server in extraction mode does with each request; ``cached``: with its prefix cache on; ``named``: from the answer
    ``named_from`` on it names this file instead of its own."""

    def script(number: int, body: Mapping[str, Any]) -> Reply:
        if named and number >= named_from:
            return Reply(body=json.dumps({"kv_transfer_params": {"hidden_states_path": named}}).encode())
        ids = body["prompt"][16 * (number > 1) * cached :]
        path = folder / f"{number}.safetensors"
        save_file({"hidden_states": torch.randn(len(ids), layers, 576), "token_ids": torch.tensor(ids)}, path)
        reply = {"choices": [{}], "kv_transfer_params": {"hidden_states_path": str(path)}}
        return Reply(body=json.dumps(reply).encode())

    return script


def test_a_run_answers_its_prompts_with_it_and_leaves_it_running(tmp_path: Path) -> None:
    with FakeVllm(friendly) as server:
        ctx = with_url(tmp_path, server)
        prompts = read_rows(tmp_path / "data" / "prompts.jsonl")
        answers = regenerate.Answers(ctx, prompts)
        with answering_server(ctx) as given:
            given.surviving(lambda: asyncio.run(regenerate.answer_all(ctx, given, answers.missing(), answers, TOY)))
        assert given.counters()["vllm:num_requests_running"] == 0, "it still answers"
    assert len(rows(tmp_path, "data/answers.part.jsonl")) == 1 + len(prompts)
    assert not list(tmp_path.glob("servers/*.json")), "it is not announced as the run's own"
    said = rows(tmp_path, "events.jsonl")[0]["text"]
    assert f"the vLLM at {server.base_url}, version 9.9.9" in said and "never stopped" in said


def refusal(ctx: StageContext, raw: Path | None = None) -> str:
    with pytest.raises(StageError) as caught, extraction_server(ctx, raw) if raw is not None else answering_server(ctx):
        pytest.fail("it was taken")
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([{"id": "other"}, {"id": "lora"}], "offers 'other', 'lora', not 'target' (target.served_name)"),
        ([], "offers nothing, not 'target'"),
        ([{"id": "target", "max_model_len": 128}], "takes 128 tokens and the spec asks for 1024 (target.max_model_len)"),
    ],
)
def test_another_model_or_too_little_room_is_said_before_the_first_prompt(
    tmp_path: Path, models: list[dict[str, Any]], said: str
) -> None:
    with FakeVllm(friendly) as server:
        server.models = models
        assert said in refusal(with_url(tmp_path, server))
    assert server.requests == []


def test_one_too_old_for_token_ids_is_named_with_its_version(tmp_path: Path) -> None:
    old = Reply(body=b'{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}')
    with FakeVllm(lambda number, body: old) as server:
        assert "(version 9.9.9) gives no token ids with its answers" in refusal(with_url(tmp_path, server))


def test_one_in_extraction_mode_must_not_answer_and_its_file_is_removed(tmp_path: Path, process: Any) -> None:
    said = refusal(context(tmp_path / "run", server__url=process(LAYERS)))
    assert said.endswith("answers with wrong tokens; give it as server.extract_url, and a plain one as server.url.")
    assert not list((tmp_path / "raw").iterdir())


def test_a_file_that_one_in_extraction_mode_cannot_be_known_to_have_written_is_left(tmp_path: Path) -> None:
    raw = tmp_path / "raw.safetensors"
    raw.touch()
    with FakeVllm(extracting(tmp_path, named=str(raw))) as server:
        said = refusal(with_url(tmp_path / "run", server))
    assert "such a server answers with wrong tokens" in said and said.endswith(
        f"The file that it named, '{raw}', was left alone."
    )
    assert raw.exists()


def test_where_nothing_answers_the_address_and_the_field_are_named(tmp_path: Path) -> None:
    said = refusal(context(tmp_path, server__url="http://127.0.0.1:9"))
    assert said.startswith("No vLLM answers at http://127.0.0.1:9 (") and "server.url" in said


def test_one_that_generates_cannot_extract_and_says_so(tmp_path: Path) -> None:
    with FakeVllm(lambda number, body: Reply(body=b'{"choices": [{"text": "x"}]}')) as server:
        said = refusal(context(tmp_path, server__extract_url=server.base_url), tmp_path)
    assert f"The vLLM at {server.base_url} (version 9.9.9) generates and cannot extract: its answer names no file" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layers": 3}, "not [48, 4, 576] (tokens, layers, hidden); start it with the layer ids [2, 15, 27, 30]"),
        (
            {"cached": True},
            "token ids are not the 48 asked for; start it with the layer ids [2, 15, 27, 30] and --no-enable",
        ),
    ],
    ids=["too few layers", "a prefix cache"],
)
def test_states_that_would_be_wrong_are_refused_before_the_first_sample(
    tmp_path: Path, process: Any, wrong: Any, said: str
) -> None:
    assert said in refusal(context(tmp_path / "run", server__extract_url=process(LAYERS, **wrong)), tmp_path)
    assert not list((tmp_path / "raw").iterdir()), "what was asked for a look is removed"


def test_one_whose_process_cannot_be_seen_is_refused_and_its_file_is_left(tmp_path: Path) -> None:
    with FakeVllm(extracting(tmp_path)) as server:
        assert "of which layers cannot be seen" in refusal(
            context(tmp_path / "run", server__extract_url=server.base_url), tmp_path
        )
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["1.safetensors"], "nobody can tell whose it is"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Any]:
    """Starts a process that looks like a vLLM with the layers given, and gives its address; this process answers there."""
    with ExitStack() as ending:

        def start(ids: list[int], *, says_where: bool = True, listens: bool = True, **more: Any) -> str:
            """``says_where``: its command line names the folder of its states. ``listens``: the process has the socket. ``more``
            goes to ``extracting``."""
            (tmp_path / "raw").mkdir()
            states = extracting(tmp_path / "raw", **more)
            fake = ending.enter_context(FakeVllm(lambda number, body: states(number, {"prompt": [1, 2, 3], **body})))
            about = {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}}}
            told = ["vllm", "--port", fake.base_url.rpartition(":")[2], "--speculative_config", json.dumps(about)]
            if says_where:
                extra = {"shared_storage_path": str(tmp_path / "raw")}
                where = {"kv_connector": "ExampleHiddenStatesConnector", "kv_connector_extra_config": extra}
                told += ["--kv-transfer-config", json.dumps(where)]
            words = [sys.executable, "-S", "-c", "import signal; signal.pause()", *told]
            looks = subprocess.Popen(words, pass_fds=(fake.fileno(),) if listens else ())
            ending.callback(looks.wait)
            ending.callback(looks.kill)
            return fake.base_url

        yield start


def test_one_in_extraction_mode_with_the_right_layers_is_taken(tmp_path: Path, process: Any) -> None:
    ctx = context(tmp_path / "run", server__extract_url=process(LAYERS))
    with extraction_server(ctx, tmp_path) as server:
        assert server.pid > 0
    assert not list((tmp_path / "raw").iterdir())


def test_the_layers_of_a_process_that_was_told_the_port_and_does_not_listen_on_it_count_for_nothing(
    tmp_path: Path, process: Any
) -> None:
    said = refusal(context(tmp_path / "run", server__extract_url=process(LAYERS, listens=False)), tmp_path)
    assert "of which layers cannot be seen" in said and ") does not listen on it), and a draft of other layers is broken" in said


def test_one_that_does_not_say_where_it_writes_is_refused(tmp_path: Path, process: Any) -> None:
    said = refusal(context(tmp_path / "run", server__extract_url=process(LAYERS, says_where=False)), tmp_path)
    assert "into which folder its command line does not say" in said and "shared_storage_path in --kv-transfer-config" in said


def test_one_that_names_a_file_of_somebody_else_is_refused_before_the_first_sample_and_the_file_stays(
    tmp_path: Path, process: Any
) -> None:
    precious = tmp_path / "precious.safetensors"
    precious.write_bytes(b"weights")
    url = process(LAYERS, named=str(precious))
    said = refusal(context(tmp_path / "run", server__extract_url=url), tmp_path)
    assert said.startswith(
        f"The vLLM at {url} (version 9.9.9) names '{precious}' as the file of a sample's states, which is not in "
    )
    assert str(tmp_path / "raw") in said and said.endswith("so that the run starts its own.")
    assert precious.read_bytes() == b"weights"


def test_one_that_turns_hostile_in_the_middle_ends_the_stage_and_takes_nothing_with_it(tmp_path: Path, process: Any) -> None:
    precious = tmp_path / "precious.safetensors"
    precious.write_bytes(b"weights")
    url = process(LAYERS, named=str(precious), named_from=6)
    ctx = context(tmp_path / "run", server__extract_url=url, extract__concurrency=1)
    write_rows(ctx.path("data", "samples.jsonl"), [sample(index) for index in range(4)])
    with pytest.raises(StageError, match=rf"names '{precious}' as the file of a sample's states.*neither read nor removed"):
        extract.run(ctx)
    assert precious.read_bytes() == b"weights" and not list((tmp_path / "raw").iterdir())
    assert len(rows(ctx.run_dir, "states/manifest.jsonl")) >= 2, "what landed before stays"


def test_states_that_this_process_cannot_see_are_said_to_be_so_and_no_wrong_layers(
    tmp_path: Path, process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing.written, "__kwdefaults__", {"limit_s": 0.1})
    url = process(LAYERS, named=str(tmp_path / "raw" / "elsewhere.safetensors"))
    said = refusal(context(tmp_path / "run", server__extract_url=url), tmp_path)
    assert f"writes its states to {tmp_path / 'raw'}, where this process cannot read and remove them (the server has not" in said
    assert "layer ids" not in said and said.endswith("leave server.extract_url empty, so that the run starts its own.")


def test_other_layers_are_named(tmp_path: Path, process: Any) -> None:
    ctx = context(tmp_path / "run", server__extract_url=process([3, 15, 27, 30]))
    assert "extracts the layers [3, 15, 27, 30] and the run needs [2, 15, 27, 30]" in refusal(ctx, tmp_path)


@pytest.mark.parametrize(
    ("command", "ids"),
    [
        (["vllm", "--speculative_config", '{"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}'], [1, 2]),
        (["vllm", '--speculative-config={"eagle_aux_hidden_state_layer_ids": [3]}'], [3]),
        (["vllm", "--speculative_config", "no JSON"], None),
        (["vllm"], None),
    ],
)  # fmt: skip
def test_the_layers_are_read_from_a_command_line(command: list[str], ids: list[int] | None) -> None:
    assert layer_ids(command) == ids


async def test_when_its_other_users_suffer_the_run_holds_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.watching._LOOK_EVERY_S", 0.05)
    with FakeVllm(friendly) as server:
        server.first_token = (100, 100)
        ctx = with_url(tmp_path, server, regenerate__concurrency=8)
        with answering_server(ctx) as given:
            assert given.limit() == 8
            server.first_token = (100, 140)  # 40 requests came, none of them within the usual time
            await until(lambda: (given.limit() or 0) < 8, "the run to hold back")
            given.check_alive()

            def after_a_fast_answer() -> bool:
                fast, every = server.first_token or (0, 0)
                server.first_token = (fast + 1, every + 1)
                return given.limit() == 8

            await until(after_a_fast_answer, "the run to take its share again")
    (said,) = [row["text"] for row in rows(tmp_path, "events.jsonl") if row["kind"] == "shared-server"]
    assert "4 instead of 8 requests in flight" in said


async def test_when_it_goes_away_the_run_waits_for_it_and_then_says_that_it_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.watching._LOOK_EVERY_S", 0.05)
    calls = []

    def work() -> None:
        calls.append(1)
        given.check_alive()

    with held_port() as port:
        with FakeVllm(friendly, port=port) as server:
            ctx = with_url(tmp_path, server, server__start_timeout_s=0.5)
            given = answering_server(ctx)
            given.__enter__()
            server.health = 503
        await until(lambda: given._watch.dead != "", "the watch to notice")  # type: ignore[attr-defined]
        with pytest.raises(
            StageError, match=r"answers nothing any more.*It is not the run's own.*start it\. Mend the cause, then resume"
        ):
            given.surviving(work)
    assert len(calls) == 1
    told = of_guard(rows(tmp_path, "events.jsonl"), "server")
    assert [event["guard"]["response"] for event in told] == ["warn", "stop"]


async def test_while_it_is_waited_for_progress_says_so_and_how_far_the_stage_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.watching._LOOK_EVERY_S", 0.05)
    told: list[dict[str, Any]] = []

    def look() -> bool:
        """Asked while the run waits: then the owner starts the server again."""
        if not told and "waiting for the vLLM" in (tmp_path / "progress.json").read_text():
            told.append(json.loads((tmp_path / "progress.json").read_text()))
            again.__enter__()
        return False

    with held_port() as port:
        with FakeVllm(friendly, port=port) as server:
            ctx = with_url(tmp_path, server, server__start_timeout_s=60)
            given = answering_server(ctx)
            given.__enter__()
            ctx.journal.progress("regenerate", 5, 9, "answers")
        await until(lambda: given._watch.dead != "", "the watch to notice")  # type: ignore[attr-defined]
        again, ctx.stop_requested = FakeVllm(friendly, port=port), look
        given.surviving(given.check_alive)
        given.__exit__(None, None, None)
        again.__exit__(None, None, None)
    (progress,) = told
    assert (progress["stage"], progress["done"], progress["total"], progress["unit"]) == ("regenerate", 5, 9, "answers")
    assert progress["quiet_until"] >= progress["t"] + 60, "so that the wait is not taken for a stall"


def test_a_given_server_of_another_stage_is_waited_for_in_that_stages_name(tmp_path: Path) -> None:
    with FakeVllm(friendly) as server, measured_server(with_url(tmp_path, server)):
        progress = json.loads((tmp_path / "progress.json").read_text())
    assert progress["stage"] == "evaluate" and progress["quiet_until"] > progress["t"], "its first answer may take long"


def test_of_a_given_server_only_deaths_within_an_hour_count(tmp_path: Path) -> None:
    now = [0.0]
    deaths = Deaths(context(tmp_path), "plain", "regenerate", clock=lambda: now[0])
    counted = []
    for now[0] in (0.0, 3000.0, 3700.0, 9000.0):
        counted.append(deaths.one_more())
    assert counted == [1, 2, 2, 1]


def test_the_time_in_which_a_server_starts_again_forgives_it_no_death(tmp_path: Path) -> None:
    now = [0.0]
    deaths = Deaths(context(tmp_path), "plain", "regenerate", clock=lambda: now[0])
    counted = []
    for _ in range(3):
        now[0] += 60
        counted.append(deaths.one_more())
        with deaths.away():
            now[0] += 3600
    assert counted == [1, 2, 3], "each start took an hour, as a trillion parameters may"


async def test_a_body_without_an_end_is_cut_off_and_named(tmp_path: Path) -> None:
    with FakeVllm(lambda number, body: Reply(body=b"x" * 100_000)) as server:
        async with Completions(server.base_url, timeout_s=30, retries=0, max_answer_bytes=10_000) as client:
            with pytest.raises(RequestFailed, match=rf"the server at {server.base_url} sends more than 10,000 bytes"):
                await client.post("/v1/completions", {})


async def test_each_answers_time_is_told_and_an_answer_that_was_asked_for_twice_comes_once(tmp_path: Path) -> None:
    seen: list[float] = []
    with FakeVllm(lambda number, body: Reply(503) if number == 1 else Reply(body=b'{"n": 1}')) as server:
        async with Completions(server.base_url, timeout_s=30, backoff_s=0, observe=seen.append) as client:
            assert await client.post("/v1/completions", {}) == {"n": 1}
    assert len(seen) == 1 and len(server.requests) == 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"prompt_token_ids": []}, "has no token ids"),
        ({"choices": []}, "lacks list index out of range"),
        ({"choices": [{"message": {"content": "x"}, "token_ids": ["x"]}]}, "token ids that are no numbers"),
        (
            {"choices": [{"message": {"content": "x"}, "token_ids": [1] * 400}]},
            "400 token ids, of 400 that it counts and 96",
        ),
        ({"usage": {"completion_tokens": 9}}, "3 token ids, of 9 that it counts"),
    ],
)
def test_rubbish_with_a_good_status_is_an_error_that_names_the_server(tmp_path: Path, spoil: dict[str, Any], said: str) -> None:
    def script(number: int, body: Mapping[str, Any]) -> Reply:
        good = answer(body, "hm")
        return Reply(body=json.dumps(json.loads(good.body) | spoil).encode())

    ctx = context(tmp_path, regenerate__max_new_tokens=96)
    answers = regenerate.Answers(ctx, read_rows(tmp_path / "data" / "prompts.jsonl"))
    with FakeVllm(script) as server, pytest.raises(StageError) as caught:
        asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, TOY))  # type: ignore[arg-type]
    assert f"the server at {server.base_url}" in str(caught.value) and said in str(caught.value)
