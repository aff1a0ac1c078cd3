"""A shakedown: a few minutes at a run's full shape before its paid hours. Pure: the shortened spec, and the judgement.

Full shape means everything that decides whether a step fits and how fast it is: the longest prompts, all devices, precision,
packs, positions ahead, vocabulary, answers' limit, requests in flight. Only counts are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3.core.rates import Rate
from eagle3.core.spec import Alerts, RunSpec

STEPS = 40
"""Optimizer steps: enough for a checkpoint, a kill behind it, and as many steps again to measure."""
STEPS_PAST_SAVE = 2
"""Steps behind the first checkpoint before the kill: the resumed attempt repeats them, and their losses are compared."""
LEAST_PROMPTS = 8
TEMPLATE_TOKENS = 64
"""Room that a prompt leaves for the chat template and the target's own system message."""
SHAPE_SHARE = 0.8
"""Of what was chosen, so long the longest sample must have been."""
COMPARED_STEPS = 2
"""Steps whose losses are compared at least, where the training has as many: one may be alike by chance."""
FINISHED = ("prepare", "regenerate", "extract", "vocabulary")
"""Stages that are finished when the training is killed."""
REPEATS_WITHIN = {"float32": 1e-4, "bfloat16": 2e-2}
"""By precision, how far a repeated step's loss may lie from the first one's, as a share of it. On a CPU the two are equal."""


def shortened(spec: RunSpec, prompts_file: str) -> RunSpec:
    """The spec of the shakedown of ``spec``: its shape, with counts that take minutes, on the prompts of ``prompts_file``.

    Alerts are left out: a worker that is killed on purpose must wake nobody.
    """
    train, evaluate = spec.train, spec.evaluate
    served = min(evaluate.prompts, max(*evaluate.levels, evaluate.lossless_prompts))
    steps = min(train.max_steps, STEPS)
    counts = {
        "data": {
            "prompts": prompts_file,
            "train_prompts": min(spec.data.train_prompts, wave(spec)),
            "heldout_prompts": min(spec.data.heldout_prompts, max(4, served)),
            "heldout_kinds": [],
        },
        # A share of the states is not trained on; of these few, all are made.
        "extract": {"rank": 0, "world": 1},
        "train": {
            "max_steps": steps,
            "warmup_steps": min(train.warmup_steps, steps // 4),
            "checkpoint_every_steps": min(train.checkpoint_every_steps, max(1, steps // 4)),
            "validate_every_steps": steps,
        },
        "evaluate": {"prompts": served, "lossless_prompts": min(evaluate.lossless_prompts, 2)},
    }
    parts: dict[str, Any] = {name: getattr(spec, name).model_copy(update=changes) for name, changes in counts.items()}
    return RunSpec.model_validate(spec.model_copy(update={**parts, "alerts": Alerts(), "forked_from": ""}).model_dump())


def wave(spec: RunSpec) -> int:
    """Training prompts that fill every queue of the run once: as many as are ever in flight."""
    return max(LEAST_PROMPTS, spec.regenerate.concurrency, spec.extract.concurrency)


def longest(lengths: Sequence[int], limit: int, count: int) -> list[int]:
    """Which of some prompts to take, by place: the longest that fit ``limit`` tokens, and where those are too few, the
    shortest of the others."""
    fitting = sorted((i for i, length in enumerate(lengths) if length <= limit), key=lambda i: -lengths[i])
    others = sorted((i for i, length in enumerate(lengths) if length > limit), key=lambda i: lengths[i])
    return (fitting + others)[:count]


def prompt_limit(spec: RunSpec) -> int:
    """Tokens of the longest prompt that the servers of the run accept together with an answer of full length."""
    return max(1, spec.target.max_model_len - spec.regenerate.max_new_tokens - TEMPLATE_TOKENS)


@dataclass(frozen=True)
class Seen:
    """What a shakedown has left behind. ``killed_attempt``: which one it killed, by the signal ``killed_by``, and
    ``left_alive`` of it lived on. ``before`` and ``after`` that: step → loss. ``stage_attempts``: who finished a stage.
    ``chosen_tokens``: what the longest prompt has for certain. ``rank_steps``: the last step of each rank of the training that
    went on, by its own word."""

    state: str
    state_text: str
    longest_tokens: int
    saved_steps: Sequence[int]
    killed_attempt: int
    killed_by: int | None
    left_alive: Sequence[int]
    resumed_from: int | None
    before: Mapping[int, float]
    after: Mapping[int, float]
    stage_attempts: Mapping[str, int]
    served: Mapping[str, Any] = field(default_factory=dict)
    has_result: bool = False
    chosen_tokens: int = 0
    rank_steps: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """One thing that a shakedown is to prove: ``ok`` is whether it did, ``text`` with what."""

    name: str
    ok: bool
    text: str


def proofs(seen: Seen, spec: RunSpec) -> list[Proof]:
    """What the shakedown of ``spec`` (the shortened one) has proved, in the order in which it happened."""
    return [
        _shape(seen, spec),
        _saved(seen),
        _killed(seen),
        _resumed(seen),
        _losses(seen, spec),
        *([_ranks(seen, spec)] if spec.train_ranks > 1 else []),
        _served(seen),
        Proof("result", seen.has_result and seen.state == "finished", f"the run {seen.state_text or seen.state}"),
    ]


def _shape(seen: Seen, spec: RunSpec) -> Proof:
    limit = spec.target.max_model_len
    text = (
        f"longest sample {seen.longest_tokens:,} of {limit:,} tokens (target.max_model_len), packs of {spec.train.pack_tokens:,}"
    )
    if not seen.longest_tokens:
        return Proof("shape", False, "no sample was made")
    least = SHAPE_SHARE * seen.chosen_tokens
    if seen.longest_tokens < least:
        text += f"; a prompt of {seen.chosen_tokens:,} was chosen, so longer ones were refused: see the log of regenerate"
    return Proof("shape", "extract" in seen.stage_attempts and seen.longest_tokens >= least, text)


def _saved(seen: Seen) -> Proof:
    steps = ", ".join(str(step) for step in seen.saved_steps)
    return Proof("save", bool(seen.saved_steps), f"checkpoints of steps {steps} are whole" if steps else "no checkpoint")


def _killed(seen: Seen) -> Proof:
    if seen.killed_by is None:
        return Proof("kill", False, "the worker was not killed: the training was not reached, or over too soon")
    if seen.left_alive:
        pids = ", ".join(map(str, seen.left_alive))
        return Proof("kill", False, f"processes of the killed attempt lived on: {pids}; end them, and look why")
    return Proof("kill", seen.killed_by == 9, "the worker was killed by SIGKILL, and nothing of it lived on")


def _resumed(seen: Seen) -> Proof:
    if seen.resumed_from is None:
        return Proof("resume", False, "no training went on from a checkpoint")
    again = [stage for stage, attempt in seen.stage_attempts.items() if stage in FINISHED and attempt > seen.killed_attempt]
    text = f"the training went on from step {seen.resumed_from}"
    if again:
        return Proof("resume", False, f"{text}, but {', '.join(again)} ran again")
    return Proof("resume", True, f"{text}; no finished stage ran again")


def _losses(seen: Seen, spec: RunSpec) -> Proof:
    first, second = seen.before, seen.after
    both = sorted(first.keys() & second.keys())
    if not both:
        return Proof("same losses", False, "no step was done by both attempts, so nothing can be compared")
    wanted = min(COMPARED_STEPS, spec.train.max_steps - (seen.resumed_from or 0))
    if len(both) < wanted:
        return Proof("same losses", False, f"{len(both)} step was done by both attempts, and {wanted} are to be compared")
    off = max(abs(first[step] - second[step]) / max(abs(first[step]), 1e-12) for step in both)
    limit = REPEATS_WITHIN[spec.train.dtype]
    text = f"{len(both)} steps done twice ({both[0]} to {both[-1]}), losses within {off:.1e} of each other (limit {limit:.0e})"
    return Proof("same losses", off <= limit, text)


def _ranks(seen: Seen, spec: RunSpec) -> Proof:
    """That every rank went on behind the checkpoint and to the end."""
    ranks, last = spec.train_ranks, spec.train.max_steps
    done = [rank for rank in range(ranks) if seen.rank_steps.get(rank, 0) >= last]
    if len(done) == ranks:
        return Proof("ranks", True, f"all {ranks} ranks took every step up to {last}")
    behind = ", ".join(f"{rank} ({seen.rank_steps.get(rank, 'no step')})" for rank in range(ranks) if rank not in done)
    return Proof("ranks", False, f"{len(done)} of {ranks} ranks took step {last}; not rank {behind}; see their logs")


def _served(seen: Seen) -> Proof:
    drafts, length = seen.served.get("drafts") or 0, seen.served.get("accept_len")
    if not drafts or length is None:
        return Proof("served draft", False, "no draft was served")
    return Proof("served draft", True, f"served acceptance length {length:.2f} over {drafts:,} drafts of a hardly trained draft")


def rate_rows(before: Mapping[str, Any], measured: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each rate as it was estimated beside what the shakedown measured (None where it did not). ``before``: rate →
    ``{"value","source","basis"}``."""
    rows = []
    for name, rate in before.items():
        now = measured.get(name)
        ratio = round(now / rate["value"], 3) if now and rate["value"] else None
        rows.append({"rate": name, "estimated": rate["value"], "source": rate["source"], "measured": now, "ratio": ratio})
    return rows


def as_rows(found: Mapping[str, Rate]) -> dict[str, dict[str, Any]]:
    """Rates as JSON holds them."""
    return {name: vars(rate) for name, rate in found.items()}
