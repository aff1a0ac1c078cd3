"""Measuring a running server: the same held-out prompts, temperature 0, in one of two ways.

*Load*: many prompts in flight, wall seconds and generated tokens, for speed and for the acceptance counters.
*Single stream*: one prompt after another with token ids and log-probabilities, for the comparison with and without a
draft: nothing else is in flight, so the batch does not change the rounding.

Each measurement sends a prefix-cache salt of its own. The plain server has usually just answered these very prompts, and a
warm cache on one side only would make the draft look slower than it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from eagle3.core.acceptance import ALL_KINDS, Acceptance, CountersError, SpecCounters, of_histogram
from eagle3.core.intervals import Timed
from eagle3.core.lossless import Answer
from eagle3.engines.completions import run_bounded
from eagle3.engines.tls import trust
from eagle3.rows import read_rows
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.cpu_share import CpuWatch

TOP_LOGPROBS = 5
"""Most likely tokens asked for at each position; enough to see both sides of a tie."""

_SETTLE_POLL_S = 0.25
_SETTLE_LIMIT_S = 10.0

OnDone = Callable[[int], None]
"""Called with the number of prompts answered so far."""


class RunningServer(Protocol):
    """The part of ``engines.vllm_server.VllmServer`` that a measurement needs."""

    name: Any
    base_url: str
    pid: int
    model: str
    log_path: Path

    def check_alive(self) -> None: ...

    def counters(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Prompt:
    """A held-out prompt, reduced to its system message and first turn: later ones would need the target's own answers in
    between."""

    id: str
    text: str
    system: str = ""
    kind: str = ALL_KINDS

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]


@dataclass(frozen=True)
class Load:
    """What a load measurement saw. ``tok_s``: generated tokens over all requests ÷ wall seconds from the first request
    to the last answer."""

    requests: int
    concurrency: int
    max_new_tokens: int
    prompt_tokens: int
    tokens: int
    wall_s: float
    ended_early: int
    """Answers that ended before ``max_new_tokens``: the end of the answer is not ignored."""
    other_cpu: float
    """Share of the machine's CPU, 0 to 1, that neither the server nor this process used up: work of others."""
    of_each: tuple[Acceptance | None, ...] = ()
    """Each answer's own acceptance, in the order of the prompts; None where the server does not tell it."""
    each: tuple[Timed, ...] = ()
    """Each answer's tokens, and the seconds from its request to its end, in the order of the prompts."""

    @property
    def tok_s(self) -> float:
        return self.tokens / self.wall_s if self.wall_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "of_each"}
        return {
            **counts,
            "each": [[tokens, round(seconds, 3)] for tokens, seconds in self.each],
            "wall_s": round(self.wall_s, 3),
            "tok_s": round(self.tok_s, 3),
            "other_cpu": round(self.other_cpu, 3),
        }


def heldout_prompts(ctx: StageContext, count: int) -> list[Prompt]:
    """The first ``count`` held-out prompts of the run, in the order of ``data/prompts.jsonl``, without those that the target
    refused to answer in the stage regenerate (longer than the server allows): they would be refused again.

    Raises StageError where there are fewer.
    """
    path = ctx.run_dir / "data" / "prompts.jsonl"
    answered_path = ctx.run_dir / "data" / "conversations.jsonl"
    try:
        rows = read_rows(path)
    except FileNotFoundError as error:
        raise StageError(f"{path} is missing; resume the run, so that the stage prepare writes it.") from error
    answered = {row["hash"] for row in read_rows(answered_path)} if answered_path.is_file() else None
    held_out = [
        Prompt(str(row["id"]), str(row["turns"][0]), str(row.get("system", "")), str(row.get("kind", ALL_KINDS)))
        for row in rows
        if row["split"] == "heldout" and (answered is None or row["hash"] in answered)
    ]
    if len(held_out) < count:
        raise StageError(
            f"{path} holds {len(held_out)} held-out prompts with an answer and evaluate.prompts asks for {count}; lower it."
        )
    return held_out[:count]


def measure_load(
    ctx: StageContext,
    server: RunningServer,
    prompts: Sequence[Prompt],
    on_done: OnDone | None = None,
    *,
    concurrency: int | None = None,
    temperature: float = 0.0,
) -> Load:
    """Answer all prompts, ``concurrency`` in flight (``evaluate.concurrency`` where left out). Raises StageError where a
    request fails, naming it, and Stopped where the operator asks for a stop; what was measured so far is then worth nothing
    and is dropped."""
    evaluate = ctx.spec.evaluate
    in_flight = concurrency or evaluate.concurrency
    client = _Client(ctx, server)
    watch = CpuWatch(server.pid)
    asked: dict[str, Any] = {"max_tokens": evaluate.max_new_tokens}
    began = time.monotonic()
    bodies = asyncio.run(
        client.answer_all(prompts, in_flight, asked | ({"temperature": temperature} if temperature else {}), on_done)
    )
    wall_s = time.monotonic() - began
    return Load(
        requests=len(bodies),
        concurrency=in_flight,
        max_new_tokens=evaluate.max_new_tokens,
        prompt_tokens=sum(int(body["usage"]["prompt_tokens"]) for body in bodies),
        tokens=sum(int(body["usage"]["completion_tokens"]) for body in bodies),
        wall_s=wall_s,
        ended_early=sum(body["choices"][0]["finish_reason"] == "stop" for body in bodies),
        other_cpu=watch.others(),
        of_each=tuple(_own_acceptance(body) for body in bodies),
        each=tuple((int(body["usage"]["completion_tokens"]), took) for body, took in zip(bodies, client.seconds, strict=True)),
    )


def measure_single_stream(
    ctx: StageContext, server: RunningServer, prompts: Sequence[Prompt], max_new_tokens: int, on_done: OnDone | None = None
) -> list[Answer]:
    """Answer the prompts one by one, with token ids and log-probabilities. Raises as ``measure_load`` does."""
    asked = {"max_tokens": max_new_tokens, "logprobs": True, "top_logprobs": TOP_LOGPROBS, "return_token_ids": True}
    bodies = asyncio.run(_Client(ctx, server).answer_all(prompts, 1, asked, on_done))
    return [_answer(server, prompt, body) for prompt, body in zip(prompts, bodies, strict=True)]


def warm_up(ctx: StageContext, server: RunningServer, prompts: Sequence[Prompt], concurrency: int | None = None) -> None:
    """As many short requests at once as are in flight later, before anything is measured: the first ones pay for what is set
    up lazily, and the plain server of regenerate has long paid. With log-probabilities, whose code is compiled at first use."""
    in_flight = concurrency or ctx.spec.evaluate.concurrency
    asked = {"max_tokens": 4, "logprobs": True, "top_logprobs": TOP_LOGPROBS, "return_token_ids": True}
    asyncio.run(_Client(ctx, server).answer_all(prompts[:in_flight], in_flight, asked, None))


def server_versions(server: RunningServer) -> dict[str, str]:
    """The version of the vLLM that answers: the server's environment need not be the worker's. Empty where it does not say."""
    try:
        response = httpx.get(f"{server.base_url}/version", trust_env=False, timeout=10.0)
        return {"vllm": str(response.json()["version"])}
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return {}


def settled_counters(
    server: RunningServer,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> SpecCounters:
    """The speculation counters once nothing is in flight and two readings agree: the server counts a step shortly after
    its tokens have gone out, so the first reading after an answer may lack the last step.

    Raises StageError where they keep moving (someone else uses the server) or are not there.
    """
    deadline = clock() + _SETTLE_LIMIT_S
    before: SpecCounters | None = None
    while True:
        metrics = server.counters()
        try:
            now = SpecCounters.from_metrics(metrics)
        except CountersError as error:
            raise StageError(f"The {server.name} vLLM server cannot be evaluated: {error} See {server.log_path}.") from error
        idle = not metrics.get("vllm:num_requests_running")
        if idle and now == before:
            return now
        if clock() > deadline:
            raise StageError(
                f"The counters of the {server.name} vLLM server at {server.base_url} keep moving with no request of this run in "
                f"flight; find who else uses it, then resume the run."
            )
        before = now
        sleep(_SETTLE_POLL_S)


class _Client:
    """Sends a measurement's requests and turns everything that may go wrong into one sentence."""

    def __init__(self, ctx: StageContext, server: RunningServer) -> None:
        self._ctx = ctx
        self._server = server
        self._salt = uuid.uuid4().hex
        self._done = 0
        self.seconds: list[float] = []
        """Of each answer of ``answer_all``, in the order of its prompts."""

    async def answer_all(
        self, prompts: Sequence[Prompt], concurrency: int, asked: Mapping[str, Any], on_done: OnDone | None
    ) -> list[dict[str, Any]]:
        """The responses in the order of the prompts. The first failure cancels the rest and is raised."""
        timeout = httpx.Timeout(None, connect=10.0)
        limits = httpx.Limits(max_connections=concurrency)
        bodies: dict[int, dict[str, Any]] = {}
        took: dict[int, float] = {}
        url = self._server.base_url

        async with httpx.AsyncClient(base_url=url, verify=trust(url), trust_env=False, timeout=timeout, limits=limits) as http:

            async def one(item: tuple[int, Prompt]) -> None:
                number, prompt = item
                self._ctx.check_stop()
                began = time.monotonic()
                bodies[number] = await self._post(http, prompt, len(prompts), asked)
                took[number] = time.monotonic() - began
                self._done += 1
                if on_done is not None:
                    on_done(self._done)

            def watch() -> None:
                # A request may take minutes; neither a stop nor a server's death waits for its end.
                self._ctx.check_stop()
                self._server.check_alive()

            await run_bounded(enumerate(prompts), one, concurrency=concurrency, watch=watch)
        self.seconds = [took[number] for number in range(len(prompts))]
        return [bodies[number] for number in range(len(prompts))]

    async def _post(self, http: httpx.AsyncClient, prompt: Prompt, of: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        request = {
            "model": self._server.model,
            "messages": prompt.messages,
            "temperature": 0,
            "seed": 0,
            "cache_salt": self._salt,
            **asked,
        }
        who, log = f"The {self._server.name} vLLM server", self._server.log_path
        limit_s = self._ctx.spec.regenerate.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):  # httpx's own limit is for each piece of an answer
                response = await http.post("/v1/chat/completions", json=request)
        except (httpx.TimeoutException, TimeoutError) as error:
            self._server.check_alive()
            raise StageError(
                f"{who} did not answer prompt {prompt.id} within {limit_s:.0f} s (regenerate.request_timeout_s), "
                f"after {self._done} of {of} answers; see {log}, then resume the run."
            ) from error
        except httpx.HTTPError as error:
            self._server.check_alive()
            raise StageError(
                f"{who} stopped answering at prompt {prompt.id}, after {self._done} of {of} answers "
                f"({str(error) or type(error).__name__}); see {log}, then resume the run."
            ) from error
        if response.status_code == httpx.codes.BAD_REQUEST:
            raise StageError(
                f"{who} refuses prompt {prompt.id} ({_first_line(response.text)}); "
                "lower evaluate.max_new_tokens or raise target.max_model_len, if that is why, and start a run with it.",
                detail=response.text,
            )
        if response.status_code != httpx.codes.OK:
            raise StageError(
                f"{who} answered prompt {prompt.id} with status {response.status_code} ({_first_line(response.text)}); "
                f"see {log}, then resume the run.",
                detail=response.text,
            )
        return _checked(who, prompt, response)


def _checked(who: str, prompt: Prompt, response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
        choice = body["choices"][0]
        complete = choice["finish_reason"] in ("stop", "length") and body["usage"]["completion_tokens"] > 0
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StageError(
            f"{who} answered prompt {prompt.id} with something that is no chat completion ({_first_line(response.text)}); "
            f"check that it is vLLM.",
            detail=response.text,
        ) from error
    if not complete:
        raise StageError(
            f"{who} broke off its answer to prompt {prompt.id} ({choice['finish_reason']}, "
            f"{body['usage']['completion_tokens']} tokens); see its log, then resume the run."
        )
    checked: dict[str, Any] = body
    return checked


def _own_acceptance(body: Mapping[str, Any]) -> Acceptance | None:
    """What the answer itself tells of its drafts (``per_request_spec_decode_metrics`` of vLLM); None where it tells nothing."""
    told = (body.get("metrics") or {}).get("speculative_decoding") or {}
    try:
        return of_histogram([int(count) for count in told["acceptance_histogram"]], int(told["num_draft_tokens"]))
    except (KeyError, TypeError, ValueError):
        return None


def _answer(server: RunningServer, prompt: Prompt, body: Mapping[str, Any]) -> Answer:
    choice = body["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or []
    token_ids = choice.get("token_ids")
    if token_ids is None or len(token_ids) < len(content) or not content:
        raise StageError(
            f"The {server.name} vLLM server gives no token ids or log-probabilities (prompt {prompt.id}); "
            f"the comparison with and without the draft needs vLLM 0.11 or newer."
        )
    return Answer(
        prompt_id=prompt.id,
        text=str(choice["message"]["content"]),
        token_ids=[int(token) for token in token_ids],
        tokens=[str(token["token"]) for token in content],
        logprobs=[float(token["logprob"]) for token in content],
        top=[{str(one["token"]): float(one["logprob"]) for one in token["top_logprobs"]} for token in content],
    )


def _first_line(text: str) -> str:
    # What is no JSON, or JSON of another shape, is shown as it came.
    with contextlib.suppress(ValueError, AttributeError):
        found = json.loads(text)
        text = str(found.get("error", {}).get("message") or found.get("message") or text)
    line = next((part.strip() for part in text.splitlines() if part.strip()), "no text")
    return line if len(line) <= 200 else line[:199] + "…"
