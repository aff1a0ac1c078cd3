"""A regenerate stage on an edge fake: asked once, and finished."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from eagle3.rows import read_rows
from eagle3.stages import regenerate
from eagle3.stages.context import StageContext
from tests.stages.fake_vllm import FakeVllm, Reply, Script
from tests.stages.toy import TOY, answer


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
