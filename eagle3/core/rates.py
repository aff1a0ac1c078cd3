"""How fast things go, and how we know: measured here, reported by others, or derived from one of these.

A rate that a run of this workspace has measured (``rates.json``) replaces the one below. Reported figures of GPU machines are
those of Kimi-K2.6 on 8 x RTX PRO 6000 (local-inference-lab's rtx6kpro notes, vLLM, no context, one run each): same
architecture and size as K2.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3.core.shape import draft_size
from eagle3.core.spec import RunSpec

RateSource = Literal["measured", "reported", "derived"]

KIMI_ACTIVE = 32e9
"""Parameters that a token passes through in the model whose rates are reported."""
SMOL_ACTIVE = 134.5e6
"""The same of the model whose rates were measured on a CPU."""
SMOL_TRAIN_FLOPS = 158e6
"""Operations a token of that model's training, by ``train_flops``."""

GENERATE = {1: 88.5, 64: 1330.0, 128: 2026.0}
"""Requests in flight → tokens/s of all of them, without a draft."""
GENERATE_DRAFT = {1: 114.0, 64: 1522.0, 128: 1992.0}
"""The same with an EAGLE-3 draft proposing three tokens."""
PREFILL_TOK_S = 7500.0
"""Tokens/s of prompts, between 7,177 (32k tokens) and 7,892 (8k)."""

USE_OF_PEAK = 0.2
"""Share of a GPU's bfloat16 rate that a training of one decoder layer is assumed to reach."""
COMPILE_S = 300.0
"""Assumed time of a GPU server's start beside reading the weights: kernels, graphs, memory profile."""

CPU_RATES = {
    "server_start_s": (34.0, "server starts took 30 to 34 s"),
    "generate_tok_s": (120.0, "8,428 tokens of answers, 16 requests in flight"),
    "plain_tok_s": (75.8, "20 held-out prompts, 8 requests in flight"),
    "single_tok_s": (15.0, "192 tokens of four prompts, one at a time: what the stage evaluate took beside its load"),
    "draft_tok_s": (47.3, "20 held-out prompts, 8 requests in flight, with the draft"),
    "extract_tok_s": (399.0, "12,859 tokens, 8 requests in flight"),
    "train_tok_s": (556.0, "200 packs of 256 tokens in the 102 s of the stage, less 10 s of imports"),
}
"""The pilot of SmolLM2-135M on two quiet cores (NOTES.md, "Measured")."""


BREAK_EVEN_BY: Mapping[RateSource, str] = {"measured": "breakeven, synthetic acceptance", "derived": "breakeven"}
"""Under what name `eagle3 breakeven` puts its lengths down, by how it found them. Those that a run leaves are derived."""

PILOT_LENGTH = 1.268
"""Acceptance length of the draft at which the pilot's ``draft_tok_s`` was measured, three tokens proposed."""
PILOT_CONCURRENCY, PILOT_PROPOSED = 8, 3


@dataclass(frozen=True)
class Rate:
    """A figure (``…_tok_s``: tokens per second, ``…_s``: seconds) with where it comes from, in words."""

    value: float
    source: RateSource
    basis: str


def key(spec: RunSpec) -> str:
    """Under what name a workspace keeps the rates that it has measured."""
    return f"{spec.machine}/{spec.target.name}"


def known(table: Mapping[str, Any], spec: RunSpec) -> Mapping[str, Any]:
    """What a workspace's table of measured rates (``Probe.rates``) has for the machine and target of ``spec``: the ``measured``
    of ``rates`` and of ``core.estimate.estimate``."""
    found = table.get(key(spec))
    return found if isinstance(found, Mapping) else {}


def rates(spec: RunSpec, measured: Mapping[str, Any] | None = None) -> dict[str, Rate]:
    """Every rate that the estimate needs, by name. ``measured``: what ``rates.json`` holds under ``key(spec)``."""
    found = _cpu(spec) if spec.hardware.kind == "cpu" else _gpu(spec)
    for name, entry in (measured or {}).items():
        if name in found and isinstance(entry, Mapping) and _positive(entry.get("value")):
            value, basis = float(entry["value"]), f"run {entry.get('run', '?')} of this workspace"
            if entry.get("of_steps") is True and name == "train_tok_s":
                value, beside = _with_scorings(spec, value, _score_tok_s(spec, value))
                basis = f"{basis}, by its steps; {beside}"
            found[name] = Rate(value, "measured", basis)
    return found


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _cpu(spec: RunSpec) -> dict[str, Rate]:
    known = {name: Rate(value, "measured", f"the pilot on two cores: {basis}") for name, (value, basis) in CPU_RATES.items()}
    active = spec.target.active_parameters
    if active and not 0.9 < active / SMOL_ACTIVE < 1.1:
        train = known.pop("train_tok_s")
        known = {name: _scaled(name, rate, SMOL_ACTIVE, active) for name, rate in known.items()}
        flops = train_flops(spec)
        known["train_tok_s"] = Rate(
            train.value * SMOL_TRAIN_FLOPS / flops,
            "derived",
            f"{train.basis}, scaled by operations a token ({SMOL_TRAIN_FLOPS / 1e9:.2g} to {flops / 1e9:.2g} GFLOP)",
        )
    return known


def _gpu(spec: RunSpec) -> dict[str, Rate]:
    where = "Kimi-K2.6 on 8 x RTX PRO 6000"
    train, share = _training(spec)
    found = {
        "server_start_s": Rate(
            COMPILE_S + spec.target.weights_bytes / spec.hardware.disk_bytes_s,
            "derived",
            f"reading the weights at {spec.hardware.disk_bytes_s / 1e9:g} GB/s, and {COMPILE_S:.0f} s beside, assumed",
        ),
        "generate_tok_s": _at(GENERATE, spec.regenerate.concurrency, where),
        "plain_tok_s": _at(GENERATE, spec.evaluate.concurrency, where),
        "single_tok_s": _at(GENERATE, 1, where),
        "draft_tok_s": _at(GENERATE_DRAFT, spec.evaluate.concurrency, f"{where} with a draft"),
        "extract_tok_s": Rate(PREFILL_TOK_S, "reported", f"prefill of {where}"),
    }
    if spec.target.active_parameters:
        active = spec.target.active_parameters
        found = {name: _scaled(name, rate, KIMI_ACTIVE, active) for name, rate in found.items()}
    if spec.hardware.interconnect != "pcie":
        found = {name: _as_lower_bound(name, rate, spec.machine) for name, rate in found.items()}
    return {**found, "train_tok_s": Rate(train, "derived", share)}


def _at(curve: Mapping[int, float], requests: int, where: str) -> Rate:
    """The curve at a number of requests: as reported, or between two reported points on a logarithmic scale."""
    if requests in curve:
        return Rate(curve[requests], "reported", f"{where}, {requests} in flight")
    points = sorted(curve)
    inside = min(max(requests, points[0]), points[-1])
    if inside in curve:
        return Rate(curve[inside], "derived", f"{where}, {inside} in flight taken for {requests}")
    low = max(point for point in points if point < inside)
    high = min(point for point in points if point > inside)
    share = math.log(inside / low) / math.log(high / low)
    value = curve[low] * (curve[high] / curve[low]) ** share
    return Rate(value, "derived", f"{where}, between {low} and {high} in flight")


def _scaled(name: str, rate: Rate, reference: float, active: int) -> Rate:
    """A rate of another model: so many times faster or slower as fewer or more parameters are passed through."""
    if name == "server_start_s" or 0.9 < active / reference < 1.1:
        return rate
    basis = f"{rate.basis}, scaled by active parameters ({reference / 1e9:g} to {active / 1e9:.2g} billion)"
    return Rate(rate.value * reference / active, "derived", basis)


def _as_lower_bound(name: str, rate: Rate, machine: str) -> Rate:
    if name == "server_start_s":
        return rate
    return replace(rate, source="derived", basis=f"no figure of {machine} is known, so the slower {rate.basis}")


def train_flops(spec: RunSpec) -> float:
    """Operations that one token of a training takes, attention left out."""
    # Forward and backward are 6 operations a weight and token; the head is frozen, so 4, and the target's own pass through it 2.
    head = _head(spec)
    return float(spec.train.ttt_steps * (6 * draft_size(spec).trainable + 4 * head) + 2 * head)


def score_flops(spec: RunSpec) -> float:
    """Operations that one held-out token takes when it is scored: the forward passes of ``train_flops`` alone."""
    head = _head(spec)
    return float(spec.train.ttt_steps * (2 * draft_size(spec).trainable + 2 * head) + 2 * head)


def _head(spec: RunSpec) -> int:
    return min(spec.vocabulary.size, spec.target.vocab_size or spec.vocabulary.size) * spec.target.hidden_size


def _training(spec: RunSpec) -> tuple[float, str]:
    """Tokens/s of a training on GPUs over the whole stage, and its basis: the slower one of computing and of reading the states,
    and what is done between the steps. All ranks together score the held-out samples before the first step, on the way and at the
    end.
    """
    draft, gpus, flops_s = draft_size(spec), spec.train_ranks, USE_OF_PEAK * spec.hardware.gpu_bf16_flops
    flops = train_flops(spec)
    compute = gpus * flops_s / flops if flops_s else math.inf
    reading = spec.hardware.disk_bytes_s / draft.state_bytes_a_token
    if compute <= reading:
        basis = f"{USE_OF_PEAK:.0%} of the data sheet's rate of {gpus} GPUs, {flops / 1e9:.1f} GFLOP a token, assumed"
    else:
        rate = spec.hardware.disk_bytes_s / 1e9
        basis = f"reading the states, {draft.state_bytes_a_token:,} bytes a token, at {rate:g} GB/s, assumed"
    scoring = min(gpus * flops_s / score_flops(spec) if flops_s else math.inf, reading)
    whole, beside = _with_scorings(spec, min(compute, reading), scoring)
    return whole, f"{basis}; {beside}"


def _score_tok_s(spec: RunSpec, step_tok_s: float) -> float:
    """Held-out tokens/s from those of the steps: faster by the operations that are left out, as far as the states can be read."""
    reading = spec.hardware.disk_bytes_s / draft_size(spec).state_bytes_a_token
    return min(step_tok_s * train_flops(spec) / score_flops(spec), max(step_tok_s, reading))


def _with_scorings(spec: RunSpec, step_tok_s: float, score_tok_s: float) -> tuple[float, str]:
    """Trained tokens/s over the whole stage from those of its steps alone, and in words what else is in it."""
    train = spec.train
    tokens = train.max_steps * train.pack_tokens * spec.packs_per_step
    scorings = 2 + (train.max_steps - 1) // train.validate_every_steps
    saves = -(-train.max_steps // train.checkpoint_every_steps)
    seconds = tokens / step_tok_s + scorings * spec.data.heldout_prompts * sample_tokens(spec) / score_tok_s
    seconds += saves * draft_size(spec).checkpoint_bytes / spec.hardware.disk_bytes_s
    return tokens / seconds, f"{scorings} scorings of the held-out samples and {saves} checkpoints are in it"


def sample_tokens(spec: RunSpec) -> int:
    """Tokens of a sample whose answer is as long as it may be."""
    return min(spec.data.prompt_tokens + spec.regenerate.max_new_tokens, spec.target.max_model_len)


def break_even_name(spec: RunSpec, concurrency: int) -> str:
    """Under what name a break-even length is kept: it holds for a number of requests in flight and of proposed tokens."""
    return f"break_even_len, {concurrency} in flight, {spec.evaluate.num_speculative_tokens} proposed"


def break_even_lens(spec: RunSpec, measured: Mapping[str, Any] | None = None) -> dict[int, Rate]:
    """The acceptance length from which a draft pays, by number of requests in flight, where it is known before a training."""
    found: dict[int, Rate] = {}
    for level in spec.evaluate.levels:
        entry = (measured or {}).get(break_even_name(spec, level))
        if isinstance(entry, Mapping) and _positive(entry.get("value")):
            by = str(entry.get("run", "?"))
            synthetic = by == BREAK_EVEN_BY["measured"]
            basis = "vLLM's synthetic acceptance" if synthetic else f"the speeds that {by} of this workspace measured"
            found[level] = Rate(float(entry["value"]), "measured" if synthetic else "derived", basis)
    like_the_pilot = spec.hardware.kind == "cpu" and 0.9 < (spec.target.active_parameters or 0) / SMOL_ACTIVE < 1.1
    if like_the_pilot and spec.evaluate.num_speculative_tokens == PILOT_PROPOSED and PILOT_CONCURRENCY in spec.evaluate.levels:
        length = PILOT_LENGTH * CPU_RATES["plain_tok_s"][0] / CPU_RATES["draft_tok_s"][0]
        found.setdefault(
            PILOT_CONCURRENCY, Rate(length, "derived", "the pilot's speeds on two cores, with and without its draft")
        )
    return dict(sorted(found.items()))
