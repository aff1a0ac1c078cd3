"""One measurement of a server that speculates: its speed under load, its acceptance by vLLM's counters, and by kind of prompt.

vLLM tells each answer's own acceptance where its version can (``--per-request-spec-decode-metrics``), and these must add up to
the counters. An older one has the counters alone: the kinds are then asked for once more, one after another.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3.core.acceptance import Acceptance, between, together
from eagle3.core.evaluation import Speed, by_kind, kind_figures
from eagle3.stages.context import StageContext
from eagle3.stages.serving import Load, OnDone, Prompt, RunningServer, measure_load, settled_counters, warm_up

EACH_ANSWER = ["--per-request-spec-decode-metrics", "summary"]
"""vLLM's argument that makes every answer tell its own acceptance."""

_LOOK_S = 30.0
_LOOK = """
import importlib.util, pathlib
found = importlib.util.find_spec("vllm")
folder = pathlib.Path(found.origin).parent
print("per_request_spec_decode_metrics" in (folder / "engine" / "arg_utils.py").read_text())
"""


@dataclass(frozen=True)
class Measured:
    """What one load on a speculating server gave. ``kinds``: figures by kind of prompt; empty where not known."""

    load: Load
    acceptance: Acceptance
    kinds: dict[str, dict[str, Any]]

    @property
    def speed(self) -> Speed:
        return Speed(self.load.tok_s, self.acceptance, self.load.other_cpu, self.load.each)

    def each_json(self) -> list[dict[str, Any]]:
        """Each answer's tokens, seconds and, where known, drafts and acceptance, in the order of the prompts: what the intervals
        are made of."""
        rows: list[dict[str, Any]] = [{"tokens": tokens, "s": round(seconds, 3)} for tokens, seconds in self.load.each]
        for row, one in zip(rows, self.load.of_each, strict=True):
            if one is not None:
                row |= {"drafts": one.drafts, "accepted_per_pos": list(one.accepted_per_pos)}
        return rows


def tells_each_answer(server_python: str, folder: Path) -> bool:
    """Whether the vLLM of that interpreter knows ``EACH_ANSWER``, by its source: an unknown argument would end the server.
    ``folder``: a working folder without Python files."""
    try:
        found = subprocess.run(
            [server_python, "-c", _LOOK], capture_output=True, text=True, timeout=_LOOK_S, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.stdout.strip() == "True"


def measure(
    ctx: StageContext,
    server: RunningServer,
    prompts: Sequence[Prompt],
    on_done: OnDone | None = None,
    *,
    concurrency: int | None = None,
    temperature: float = 0.0,
) -> Measured:
    """Warm up, then answer all prompts between two readings of the counters. Raises as ``measure_load`` does, and StageError
    where the counters are not there or keep moving."""
    warm_up(ctx, server, prompts, concurrency)
    # Read after the warm-up, so that it is in no figure.
    before = settled_counters(server)
    load = measure_load(ctx, server, prompts, on_done, concurrency=concurrency, temperature=temperature)
    acceptance = between(before, settled_counters(server))
    if problems := acceptance.problems():
        ctx.journal.event("counters", " ".join(problems), level="warn")
    if not _adds_up(ctx, prompts, load, acceptance):
        return Measured(load, acceptance, {})
    if load.of_each and None not in load.of_each:
        acceptance = replace(acceptance, answers=tuple(one for one in load.of_each if one is not None))
    return Measured(load, acceptance, by_kind([prompt.kind for prompt in prompts], load.of_each))


def kinds_one_by_one(ctx: StageContext, server: RunningServer, prompts: Sequence[Prompt]) -> dict[str, dict[str, Any]]:
    """Acceptance by kind from the counters alone: each kind's prompts are answered by themselves. Raises as ``measure`` does."""
    found = {}
    for kind in sorted({prompt.kind for prompt in prompts}):
        of_it = [prompt for prompt in prompts if prompt.kind == kind]
        before = settled_counters(server)
        measure_load(ctx, server, of_it)
        found[kind] = kind_figures(between(before, settled_counters(server)), len(of_it))
    return found


def _adds_up(ctx: StageContext, prompts: Sequence[Prompt], load: Load, acceptance: Acceptance) -> bool:
    """Whether what the answers tell of themselves, where all of them do, is what the server has counted."""
    told = [one for one in load.of_each if one is not None]
    if len(told) != len(prompts) or not told:
        return True
    added = together(told)
    if (added.drafts, added.accepted) == (acceptance.drafts, acceptance.accepted):
        return True
    ctx.journal.event(
        "counters",
        f"The answers tell of {added.drafts} drafts and {added.accepted} accepted tokens, the server's counters of "
        f"{acceptance.drafts} and {acceptance.accepted}; acceptance by kind and by answer is left out.",
        level="warn",
    )
    return False
