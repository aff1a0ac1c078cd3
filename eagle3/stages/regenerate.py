"""Regenerate: the target answers every prompt itself, so that the draft learns what the target really says.

A plain server does it: one in extraction mode answers sampled requests with doubled tokens and a good status. Answers are
appended to ``data/answers.part.jsonl`` as they come, and a resumed run asks only for the missing ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from eagle3.core import guards
from eagle3.core.spec import MODEL_FIELDS, RunSpec, hash_of
from eagle3.engines.choice import answering_server, engine_part
from eagle3.engines.completions import Completions, RequestFailed, run_bounded
from eagle3.engines.model_dir import fingerprint
from eagle3.engines.server import Server
from eagle3.engines.slots import Slots
from eagle3.rows import Row, append_row, read_rows, read_rows_past_torn, read_whole_rows, write_rows
from eagle3.stages import guarding, samples
from eagle3.stages.aside import Aside
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.stages.samples import Message, Template, Turn
from eagle3.stages.truncation import say_truncated
from eagle3.stages.unanswered import Killers, settle
from eagle3.targets import model_dir

OUTPUTS = ("data/conversations.jsonl", "data/samples.jsonl", "data/baseline.json")

_PARTIAL = "data/answers.part.jsonl"
_ROW_EVERY_S = 2.0


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What this stage depends on. The baseline is measured here, so the settings of the evaluation belong to it; a change
    of those alone measures again but asks for no answer again."""
    evaluate = spec.evaluate
    more = evaluate.levels if evaluate.levels != [evaluate.concurrency] else []
    return _answers_part(spec) | {
        "baseline": [evaluate.prompts, evaluate.concurrency, evaluate.max_new_tokens, evaluate.lossless_prompts, *more]
    }


def _answers_part(spec: RunSpec) -> dict[str, Any]:
    regenerate = spec.regenerate
    return {
        "target": spec.target.model_dump(include=MODEL_FIELDS),
        "model": fingerprint(model_dir(spec.target.model)),
        "max_new_tokens": regenerate.max_new_tokens,
        "temperature": regenerate.temperature,
        "seed": spec.data.seed,
    } | engine_part(spec)


def run(ctx: StageContext) -> dict[str, Any]:
    """Write the conversations, the samples and the baseline. Figures: prompts, answer_tokens, tok_s (of this attempt),
    server_start_s, skipped, dropped, and what the baseline gives (tok_s_no_draft)."""
    ctx.check_disk()
    prompts = read_rows(ctx.path("data", "prompts.jsonl"))
    loading = Aside(lambda: Template(ctx.model_dir, trust_remote_code=ctx.spec.target.trust_remote_code))
    answers = Answers(ctx, prompts)
    missing = answers.missing()
    if len(missing) < len(prompts):
        ctx.journal.event("resume", f"{len(prompts) - len(missing)} of {len(prompts)} answers are there already.")
    # Imported here: the module belongs to the evaluation, which measures the same server with and without a draft.
    from eagle3.stages import baseline

    if not missing:
        # First the conversations: which prompts the baseline is measured on follows from them.
        figures = write_outputs(ctx, prompts, answers, loading.result())
        measured = baseline.load(ctx)
        if measured is not None or not measures_baseline(ctx.spec):
            return figures | _baseline_figures(measured)
    with answering_server(ctx, loading.check) as server:
        template = loading.result()
        began = time.monotonic() - ctx.paused_s
        if missing:
            killers = killers_of(ctx, answers)
            server.surviving(
                lambda: asyncio.run(answer_all(ctx, server, answers.missing(), answers, template, killers)), killers.died
            )
        tokens = answers.tokens(missing)
        seconds = time.monotonic() - began - ctx.paused_s
        figures = write_outputs(ctx, prompts, answers, template)
        measured = None
        if measures_baseline(ctx.spec):
            measured = server.surviving(lambda: baseline.measure(ctx, server))
        start_s = server.start_s
    rate = {"tok_s": tokens / seconds} if tokens else {}
    return figures | rate | {"server_start_s": start_s} | _baseline_figures(measured)


def measures_baseline(spec: RunSpec) -> bool:
    """Whether the server that answers here is the one to hold the draft's against: a vLLM, on the GPUs of the stage evaluate.
    Where it is not, that stage measures one itself."""
    return spec.engine == "vllm" and spec.devices.regenerate == spec.devices.evaluate


class Answers:
    """The partial file: a first row that says what the answers were made with, then one row a conversation."""

    def __init__(self, ctx: StageContext, prompts: Sequence[Row]) -> None:
        self.path = ctx.path(_PARTIAL)
        # With a number of their own: ids may be many to one.
        self._prompts = [prompt | {"index": number} for number, prompt in enumerate(prompts)]
        made_with = hash_of(_answers_part(ctx.spec))
        try:
            rows = read_whole_rows(self.path)
        except ValueError as error:
            rows = read_rows_past_torn(self.path)
            write_rows(self.path, rows)
            ctx.journal.event("resume", f"Some answers cannot be read ({error}); these are asked for again.", level="warn")
        if not rows or rows[0].get("made_with") != made_with:
            write_rows(self.path, [{"v": 1, "made_with": made_with}])
            rows = [{}]
        self._by_key: dict[str, Row] = {row["key"]: row for row in rows[1:] if "key" in row}

    @property
    def total(self) -> int:
        """How many prompts there are."""
        return len(self._prompts)

    def missing(self) -> list[Row]:
        return [prompt for prompt in self._prompts if _key(prompt) not in self._by_key]

    def add(self, prompt: Row, row: Row) -> None:
        row = {"key": _key(prompt), **row}
        append_row(self.path, row)
        self._by_key[row["key"]] = row

    def forget(self, keys: Collection[str]) -> None:
        """Take answers back, on disk too."""
        kept = [row for row in read_whole_rows(self.path) if row.get("key") not in keys]
        write_rows(self.path, kept)
        self._by_key = {row["key"]: row for row in kept if "key" in row}

    def tokens(self, prompts: Sequence[Row]) -> int:
        """Tokens of the answers to these prompts."""
        return sum(len(turn["answer_ids"]) for prompt in prompts for turn in self.of(prompt).get("turns", []))

    def any(self) -> bool:
        """Whether a prompt has an answer that is more than a refusal."""
        return any("refused" not in row for row in self._by_key.values())

    def answered(self) -> int:
        """How many prompts have an answer that is more than a refusal."""
        return sum("refused" not in row for row in self._by_key.values())

    def failed(self) -> int:
        """How many prompts were put aside for want of an answer, in whatever attempt."""
        return sum("failed" in row for row in self._by_key.values())

    def of(self, prompt: Row) -> Row:
        return self._by_key[_key(prompt)]


def _key(prompt: Row) -> str:
    return hash_of([prompt.get("system", ""), prompt["turns"]])


def killers_of(ctx: StageContext, answers: Answers) -> Killers:
    """Who is to blame for the deaths of the server, over all attempts."""
    return Killers(ctx, answers, _key)


async def answer_all(
    ctx: StageContext, server: Server, prompts: Sequence[Row], answers: Answers, template: Template,
    killers: Killers | None = None,
) -> None:  # fmt: skip
    """Ask for every conversation, turn by turn. Raises StageError when more than a few failed, as soon as a conversation can be
    no sample (the server's template is another, or rewrites earlier turns), and as soon as the guard against repeated tokens
    says that the server answers rubbish."""
    settings = ctx.spec.regenerate
    killers = killers or killers_of(ctx, answers)
    ends = template.end_ids()
    progress = _Progress(ctx, answers.total - len(prompts), answers.total)
    rubbish = _Rubbish(ctx, server, answers)
    slots = Slots(settings.concurrency, server.limit)
    async with Completions(server.base_url, timeout_s=settings.request_timeout_s) as client:

        async def answer(prompt: Row) -> None:
            messages = _opening(prompt)
            turns: list[Turn] = []
            for text in prompt["turns"]:
                messages.append({"role": "user", "content": text})
                async with slots.one(), killers.watching(prompt):
                    reply = await client.post("/v1/chat/completions", _request(ctx, server.model, messages))
                content, turn = _read_reply(server, reply, settings.max_new_tokens)
                messages.append({"role": "assistant", "content": content})
                turns.append(turn)
            # Now, and not when all have been paid for.
            _sample(ctx, prompt, messages, turns, template, ends)
            answers.add(prompt, {"messages": messages, "turns": [turn.as_row() for turn in turns]})
            rubbish.take(prompt, turns)
            progress.add(sum(len(turn.answer_ids) for turn in turns))

        watch, failures = _watch(ctx, server), []
        async for some, at_once in killers.turns(prompts, settings.concurrency, watch):
            failures += await run_bounded(some, answer, concurrency=at_once, watch=watch, hold=progress.hold)
    settle(ctx, server, failures, answers)
    progress.row()


def _watch(ctx: StageContext, server: Server) -> Callable[[], None]:
    def watch() -> None:
        ctx.check_stop()
        server.check_alive()

    return watch


def _opening(prompt: Row) -> list[Message]:
    return [{"role": "system", "content": prompt["system"]}] if prompt.get("system") else []


def _request(ctx: StageContext, model: str, messages: Sequence[Message]) -> dict[str, Any]:
    settings = ctx.spec.regenerate
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "seed": ctx.spec.data.seed,
        "return_token_ids": True,
    }


def _read_reply(server: Server, reply: dict[str, Any], most: int) -> tuple[str, Turn]:
    """Text and tokens of an answer. Raises RequestFailed, naming the server, for one that is no answer, whatever its status."""
    who = f"the answer of the server at {server.base_url}"
    try:
        choice = reply["choices"][0]
        content = choice["message"]["content"] or ""
        prompt_ids, answer_ids = reply["prompt_token_ids"], choice["token_ids"]
    except (KeyError, IndexError, TypeError) as error:
        raise RequestFailed(f"{who} lacks {error}; vLLM 0.11 or newer returns token ids") from error
    if not prompt_ids or not answer_ids:
        raise RequestFailed(f"{who} has no token ids; vLLM 0.11 or newer returns them")
    if not all(type(token) is int and token >= 0 for token in (*prompt_ids, *answer_ids)):
        raise RequestFailed(f"{who} has token ids that are no numbers")
    told = (reply.get("usage") or {}).get("completion_tokens", len(answer_ids))
    if len(answer_ids) > most or told != len(answer_ids):
        raise RequestFailed(f"{who} has {len(answer_ids)} token ids, of {told} that it counts and {most} asked for")
    return content, Turn(list(prompt_ids), list(answer_ids), str(choice.get("finish_reason")))


class _Rubbish:
    """Ends the stage while it is young when the answers are runs of repeated tokens ("!!!!") and the guard stops at that.
    Softer responses wait for all answers."""

    def __init__(self, ctx: StageContext, server: Server, answers: Answers) -> None:
        self._ctx, self._server, self._answers = ctx, server, answers
        self._shares: dict[str, float] = {}
        self._over = False

    def take(self, prompt: Row, turns: Sequence[Turn]) -> None:
        """Look at one more answer. Raises StageError; the answers that repeat are then forgotten, so that a resume asks for
        them again."""
        limits = self._ctx.spec.guards
        if limits.repeated != "stop":
            return
        self._shares[_key(prompt)] = max(samples.repeated_share(turn.answer_ids) for turn in turns)
        if self._over:
            self._forget()
            return
        found = guards.repeated_answers(list(self._shares.values()), limits)
        if found:
            self._over = True
            self._forget()
            text = f"The server at {self._server.base_url} answers with a good status and repeated tokens."
            self._ctx.journal.event("server-rubbish", text, level="error")
            guarding.act(self._ctx, found)

    def _forget(self) -> None:
        limit = self._ctx.spec.guards.repeated_share
        self._answers.forget({key for key, share in self._shares.items() if share > limit})


class _Progress:
    """Answers done and tokens a second, in progress.json and as metric rows. ``done``: those that are there already, of an
    attempt or a server before."""

    def __init__(self, ctx: StageContext, done: int, total: int) -> None:
        self.tokens = 0
        self._ctx, self._total, self._done, self._before = ctx, total, done, done
        self._began = self._last = time.monotonic()
        self.hold = Hold(ctx, "regenerate", "answers")
        self.hold.done, self.hold.total = done, total
        # A cold model may take as long for its first answer as any answer may take.
        quiet_s, reason = ctx.spec.regenerate.request_timeout_s, "the first answers are on their way"
        ctx.journal.progress("regenerate", done, total, "answers", quiet_s=quiet_s, reason=reason)

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        self._done += 1
        self.hold.done = self._done
        self.hold.progress(force=self._done == self._total)
        if time.monotonic() - self._last >= _ROW_EVERY_S:
            self.row()

    def row(self) -> None:
        self._last = time.monotonic()
        if self._done > self._before:
            self._ctx.journal.metrics(
                "regenerate", self._done, tok_s=self.tokens / max(self._last - self._began - self.hold.seconds, 1e-9)
            )


def write_outputs(ctx: StageContext, prompts: Sequence[Row], answers: Answers, template: Template) -> dict[str, Any]:
    ends = template.end_ids()
    conversations: list[Row] = []
    kept: list[Row] = []
    answer_tokens = repeating = dropped = skipped = cut = 0
    shares: list[float] = []
    supervised: list[int] = []
    for prompt in prompts:
        row = answers.of(prompt)
        if "refused" in row:
            skipped += 1
            continue
        turns = [Turn(**turn) for turn in row["turns"]]
        about = {key: prompt[key] for key in ("id", "kind", "split", "hash")}
        shares.append(max(samples.repeated_share(turn.answer_ids) for turn in turns))
        broken = shares[-1] > ctx.spec.guards.repeated_share
        conversations.append(about | {"messages": row["messages"]} | ({"repeating": True} if broken else {}))
        answer_tokens += sum(len(turn.answer_ids) for turn in turns)
        cut += turns[-1].finish == "length"
        repeating += broken
        if broken and prompt["split"] == "train":
            dropped += 1
            continue
        sample = _sample(ctx, prompt, row["messages"], turns, template, ends)
        supervised.append(sum(sample.loss_mask))
        if not any(sample.loss_mask):
            skipped += 1
            continue
        kept.append(
            {
                "index": len(kept),
                **about,
                "input_ids": sample.input_ids,
                "loss_mask": sample.loss_mask,
                "prompt_tokens": sample.prompt_tokens,
            }
        )
    if repeating:
        text = f"{repeating} of {len(conversations)} answers repeat single tokens; {dropped} are kept out of training."
        ctx.journal.event("repeating", text, level="warn")
    limits = ctx.spec.guards
    if guarding.act(ctx, [*guards.repeated_answers(shares, limits), *guards.blind_samples(supervised, limits)]):
        Hold(ctx, "regenerate").wait()
    _judge(ctx, kept, len(conversations))
    write_rows(ctx.path(OUTPUTS[0]), conversations)
    write_rows(ctx.path(OUTPUTS[1]), kept)
    return {
        "prompts": len(conversations), "answer_tokens": answer_tokens, "cut_at_limit": cut,
        "repeating": repeating, "dropped": dropped, "skipped": skipped,
    }  # fmt: skip


def _sample(
    ctx: StageContext, prompt: Row, messages: Sequence[Message], turns: Sequence[Turn], template: Template, ends: frozenset[int]
) -> samples.Sample:
    """The sample of a conversation. Raises StageError, naming the prompt, where it can be none."""
    # One token less than the server's limit: extraction sends a sample as a prompt and must ask for one token more.
    limit = ctx.spec.target.max_model_len - 1
    try:
        return samples.make_sample(messages, turns, template.render, ends, limit)
    except samples.TemplateError as error:
        raise StageError(f"Prompt '{prompt['id']}': {error}") from error


def _judge(ctx: StageContext, kept: Sequence[Row], answered: int) -> None:
    train = sum(row["split"] == "train" for row in kept)
    heldout = len(kept) - train
    if not train:
        raise StageError(f"None of the {answered} answers can be trained on; look at the conversations and the server's log.")
    if heldout < ctx.spec.evaluate.prompts:
        raise StageError(
            f"Only {heldout} held-out prompts were answered and evaluate.prompts is {ctx.spec.evaluate.prompts}; "
            "lower it, or raise target.max_model_len."
        )
    for split in ("train", "heldout"):
        # Before the states are extracted, which takes the longest.
        say_truncated(ctx, split, [row["loss_mask"] for row in kept if row["split"] == split])


def _baseline_figures(measured: Any) -> dict[str, Any]:
    found = measured.get("tok_s_no_draft") if isinstance(measured, dict) else None
    return {"tok_s_no_draft": found} if found is not None else {}
