"""What the plain server does without a draft, on the prompts on which the draft is judged later.

Measured while the stage regenerate has its plain server up, which saves a start of the server; the stage evaluate measures
it itself where the file is missing or belongs to other settings.
"""

from __future__ import annotations

from typing import Any

from eagle3.core.evaluation import Speed
from eagle3.core.lossless import Answer
from eagle3.core.serving import measured_part
from eagle3.core.spec import hash_of
from eagle3.engines.model_dir import fingerprint
from eagle3.runner import rundir
from eagle3.stages.context import StageContext
from eagle3.stages.serving import Prompt, RunningServer, heldout_prompts, measure_load, measure_single_stream, warm_up

FILE = "data/baseline.json"

OWN_FILE = "evaluate/baseline.json"
"""Where the stage evaluate puts one that it measures itself: the other file is an output of regenerate, and changing it would
make that stage and all after it run again."""

LOSSLESS_TOKENS = 48
"""Tokens compared of each answer at most: one stream is slow, and where rounding shows it shows early."""


def measure(ctx: StageContext, server: RunningServer, *, stage: str = "regenerate") -> dict[str, Any]:
    """Measure the plain ``server``, write it to ``data/baseline.json`` (``evaluate/baseline.json`` for
    that stage) and return its content: ``tok_s_no_draft`` (tokens per
    second at ``evaluate.concurrency``), ``load``, ``more`` (the loads at other numbers of requests in flight) and ``answers``
    (single stream). ``stage``: whose progress it is.

    Raises StageError where a request fails and Stopped on a stop; the file is then not written.
    """
    prompts = heldout_prompts(ctx, ctx.spec.evaluate.prompts)
    compared = lossless_prompts(ctx, prompts)
    levels = other_levels(ctx)
    total = len(prompts) * (1 + len(levels)) + len(compared)
    done = 0

    def on_done(count: int) -> None:
        ctx.journal.progress(stage, done + count, total, "prompts", reason="without a draft", force=False)

    ctx.journal.restart_rate()
    quiet_s = ctx.spec.regenerate.request_timeout_s  # what a request of a measurement may take
    ctx.journal.progress(stage, 0, total, "prompts", quiet_s=quiet_s, reason="without a draft")
    warm_up(ctx, server, prompts)
    load = measure_load(ctx, server, prompts, on_done)
    more = []
    for level in levels:
        done += len(prompts)
        warm_up(ctx, server, prompts, level)
        more.append(measure_load(ctx, server, prompts, on_done, concurrency=level))
    done += len(prompts)
    answers = measure_single_stream(ctx, server, compared, lossless_tokens(ctx), on_done)
    found = {
        "v": 1,
        "key": key(ctx, prompts),
        "prompts": [prompt.id for prompt in prompts],
        "tok_s_no_draft": round(load.tok_s, 3),
        "load": load.to_json(),
        **({"more": [one.to_json() for one in more]} if more else {}),
        "answers": [answer.to_json() for answer in answers],
    }
    rundir.write_json(ctx.path(FILE if stage == "regenerate" else OWN_FILE), found)
    ctx.journal.event(
        "baseline",
        f"Without a draft: {load.tok_s:.1f} tokens/s on {load.requests} held-out prompts at concurrency {load.concurrency}.",
    )
    return found


def load(ctx: StageContext) -> dict[str, Any] | None:
    """The baseline on disk; None where there is none, or where it was measured on other prompts or under other settings."""
    wanted = key(ctx, heldout_prompts(ctx, ctx.spec.evaluate.prompts))
    for name in (FILE, OWN_FILE):
        found = rundir.read_json(ctx.run_dir / name)
        if isinstance(found, dict) and found.get("key") == wanted:
            return found
    return None


def answers_of(found: dict[str, Any]) -> list[Answer]:
    """The single-stream answers of a baseline."""
    return [Answer.from_json(row) for row in found["answers"]]


def loads_of(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The loads of a baseline, by the number of requests in flight."""
    return {int(load["concurrency"]): load for load in (found["load"], *found.get("more", []))}


def speed_of(load: dict[str, Any]) -> Speed:
    """The speed of a load of a baseline. One that an older version measured does not tell each answer's."""
    each = tuple((float(tokens), float(seconds)) for tokens, seconds in load.get("each", []))
    return Speed(float(load["tok_s"]), other_cpu=float(load["other_cpu"]), each=each)


def other_levels(ctx: StageContext) -> list[int]:
    """The numbers of requests in flight that are measured beside ``evaluate.concurrency``."""
    return [level for level in ctx.spec.evaluate.levels if level != ctx.spec.evaluate.concurrency]


def lossless_prompts(ctx: StageContext, prompts: list[Prompt]) -> list[Prompt]:
    """The prompts that are answered in single stream."""
    return prompts[: ctx.spec.evaluate.lossless_prompts]


def lossless_tokens(ctx: StageContext) -> int:
    """Tokens asked for in single stream."""
    return min(ctx.spec.evaluate.max_new_tokens, LOSSLESS_TOKENS)


def key(ctx: StageContext, prompts: list[Prompt]) -> str:
    """A hash of all that the baseline's figures depend on; the draft and the thresholds are not of it."""
    spec = ctx.spec
    server = measured_part(spec)
    target = spec.target.model_dump(include={"name", "model", "dtype", "max_model_len"})
    evaluate = spec.evaluate.model_dump(include={"concurrency", "max_new_tokens", "lossless_prompts"})
    asked = [[prompt.id, *prompt.messages] for prompt in prompts]
    return hash_of(
        {
            "target": target,
            "model": fingerprint(ctx.model_dir),
            "server": server,
            "evaluate": evaluate,
            "tokens": lossless_tokens(ctx),
            **({"levels": levels} if (levels := other_levels(ctx)) else {}),
            "prompts": asked,
        }
    )
