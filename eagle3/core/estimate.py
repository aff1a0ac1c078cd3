"""What a run will take before it starts: bytes, tokens and seconds by stage, each with where its rate comes from.

Pure: the spec, and the rates that earlier runs of the workspace have measured. ``compare`` says afterwards how far off it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3.core.problems import problems
from eagle3.core.rates import Rate, RateSource, break_even_lens, rates, sample_tokens
from eagle3.core.shape import draft_size
from eagle3.core.spec import STAGES, RunSpec
from eagle3.core.wording import bytes_label, duration_label

DATA_BYTES_A_TOKEN = 25
"""Conversations, samples and answers in JSON: 316,839 bytes for 12,859 tokens in the pilot."""
STATE_FILE_BYTES = 4096
"""A state file's header and the rest of its last block."""
LOG_BYTES = 16 << 20
"""Room for the logs of the run and of its servers."""
FOR_A_WHILE = "for a while (a checkpoint more as it is saved, a copy of the draft for its export)"
METRIC_BYTES_A_STEP = 500
LOSSLESS_TOKENS = 48
"""Tokens compared of each single-stream answer at most."""
IMPORT_S = 10.0
"""Importing torch and speculators, 9 s on two cores."""
COPIED = frozenset({"regenerate"})
"""Stages of which a fork copies what it takes over: its answers are appended to. All else gets a second name, without room."""
AFTER_EXTRACT = STAGES[STAGES.index("extract") + 1 :]
"""Stages that a run of one share of the states does not reach."""
WARM_UP = 1.15
"""A measurement also warms up at its own concurrency."""


@dataclass(frozen=True)
class Need:
    """Room on a disk: ``bytes`` and ``inodes`` under ``path``, for ``what``. Nothing of it where ``unless`` is there already.

    Paths are the spec's own, so they may begin with "~" or "{cache}".
    """

    path: str
    bytes: int
    inodes: int
    what: str
    unless: str = ""


@dataclass(frozen=True)
class StageEstimate:
    """A stage's files in ``bytes``, its ``tokens``, its ``seconds``, and the ``rate`` (tokens/s) that these follow from."""

    stage: str
    bytes: int
    tokens: int
    seconds: float
    rate: float | None
    rate_source: RateSource
    basis: str


@dataclass(frozen=True)
class Estimate:
    """``peak_bytes``: the most that the run directory holds at any time, which is the stages' bytes, ``log_bytes`` and
    ``transient_bytes``, what is there only for a while. ``problems``: why the run cannot work, one sentence each."""

    stages: list[StageEstimate]
    needs: list[Need]
    log_bytes: int
    transient_bytes: int
    sample_tokens: int
    state_bytes_a_token: int
    checkpoint_bytes: int
    draft_bytes: int
    problems: list[str] = field(default_factory=list)
    break_even: dict[int, Rate] = field(default_factory=dict)
    """The acceptance length from which the draft will pay, by requests in flight; empty where it is not known."""

    @property
    def stage_bytes(self) -> int:
        """Of the files of all stages, which stay."""
        return sum(stage.bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        return self.stage_bytes + self.log_bytes + self.transient_bytes

    @property
    def seconds(self) -> float:
        """Of all stages together."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def tokens(self) -> int:
        """Tokens whose states are stored."""
        return self.of("extract").tokens

    def of(self, stage: str) -> StageEstimate:
        """The estimate of one stage."""
        return next(entry for entry in self.stages if entry.stage == stage)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as ``estimate.json`` and ``eagle3 spec estimate --json`` hold it."""
        return {
            "v": 1,
            "stages": [vars(stage) for stage in self.stages],
            "needs": [vars(need) for need in self.needs],
            "seconds": round(self.seconds, 1),
            "stage_bytes": self.stage_bytes,
            "log_bytes": self.log_bytes,
            "transient_bytes": self.transient_bytes,
            "peak_bytes": self.peak_bytes,
            "tokens": self.tokens,
            "sample_tokens": self.sample_tokens,
            "state_bytes_a_token": self.state_bytes_a_token,
            "checkpoint_bytes": self.checkpoint_bytes,
            "draft_bytes": self.draft_bytes,
            "problems": self.problems,
            "break_even": [{"concurrency": level, **vars(rate)} for level, rate in self.break_even.items()],
        }


def estimate(spec: RunSpec, measured: Mapping[str, Any] | None = None, taken: Collection[str] = ()) -> Estimate:
    """The estimate of a run. ``measured``: the workspace's own rates for this machine and target, as ``rates.json`` has them.
    ``taken``: the stages that a fork takes over whole (`core.lineage.ForkPlan`): they take no time, and no new room."""
    known = rates(spec, measured)
    size = draft_size(spec)
    samples = spec.data.train_prompts + spec.data.heldout_prompts
    sample = sample_tokens(spec)
    tokens, answers = samples * sample, samples * min(spec.regenerate.max_new_tokens, sample)
    stages = [_linked(stage) if stage.stage in taken else stage for stage in _stages(spec, known, tokens, answers, samples)]
    if spec.extract.world > 1:
        taken = {*taken, *AFTER_EXTRACT}
        stages = [_left_out(stage) if stage.stage in AFTER_EXTRACT else stage for stage in stages]
    # Between two checkpoints' saving one more is there, and export may need a copy of the draft.
    transient = ("train" not in taken) * size.checkpoint_bytes + ("export" not in taken) * size.saved_bytes
    peak = sum(stage.bytes for stage in stages) + LOG_BYTES + transient
    return Estimate(
        stages=stages,
        needs=_needs(spec, peak, samples, tokens, taken),
        log_bytes=LOG_BYTES,
        transient_bytes=transient,
        sample_tokens=sample,
        state_bytes_a_token=size.state_bytes_a_token,
        checkpoint_bytes=size.checkpoint_bytes,
        draft_bytes=size.saved_bytes,
        problems=problems(spec),
        break_even=break_even_lens(spec, measured),
    )


def _stages(spec: RunSpec, known: Mapping[str, Rate], tokens: int, answers: int, samples: int) -> list[StageEstimate]:
    size, train, judged = draft_size(spec), spec.train, spec.evaluate
    start = known["server_start_s"].value
    load = judged.prompts * judged.max_new_tokens
    share = -(-tokens // spec.extract.world)
    single = judged.lossless_prompts * min(judged.max_new_tokens, LOSSLESS_TOKENS)
    steps = train.max_steps * train.pack_tokens * spec.packs_per_step
    alone = single / known["single_tok_s"].value

    sampled = len(judged.sampled) * WARM_UP * load / known["draft_tok_s"].value
    ngram = start + loads_s(spec, known, "plain_tok_s") if judged.ngram else 0.0

    def entry(stage: str, size_bytes: int, count: int, seconds: float, rate: str = "", about: str = "") -> StageEstimate:
        if not rate:
            return StageEstimate(stage, size_bytes, count, seconds, None, "derived", about)
        found = known[rate]
        return StageEstimate(stage, size_bytes, count, seconds, found.value, found.source, found.basis)

    made = [
        entry("prepare", samples * 400, 0, 1.0, about="reading the prompts; checking the target's folder takes seconds"),
        entry(
            "regenerate",
            tokens * DATA_BYTES_A_TOKEN,
            answers,
            start + answers / known["generate_tok_s"].value + loads_s(spec, known, "plain_tok_s") + alone,
            "generate_tok_s",
        ),
        entry(
            "extract",
            share * size.state_bytes_a_token + samples * STATE_FILE_BYTES,
            share,
            start + share / known["extract_tok_s"].value,
            "extract_tok_s",
        ),
        entry("vocabulary", 10 * (spec.target.vocab_size or spec.vocabulary.size), tokens, IMPORT_S / 2, about="importing torch"),
        entry(
            "train",
            (train.keep_last + int(train.keep_best)) * size.checkpoint_bytes
            + 2 * size.saved_bytes
            + train.max_steps * METRIC_BYTES_A_STEP,
            steps,
            IMPORT_S + steps / known["train_tok_s"].value,
            "train_tok_s",
        ),
        entry("evaluate", 1 << 20, load, start + loads_s(spec, known, "draft_tok_s") + sampled + ngram + alone, "draft_tok_s"),
        entry("export", 1 << 16, 0, 1.0, about="a second name for the draft's file, and the model card"),
    ]
    assert [stage.stage for stage in made] == list(STAGES)
    return made


def loads_s(spec: RunSpec, known: Mapping[str, Rate], rate: str) -> float:
    """Seconds of an evaluation's load at each number of requests in flight, one after another. ``known``: ``core.rates.rates``;
    ``rate``: which of them is the speed at ``evaluate.concurrency``."""
    judged = spec.evaluate
    load = judged.prompts * judged.max_new_tokens
    return sum(WARM_UP * load / _tok_s_at(level, known, rate, judged.concurrency) for level in judged.levels)


def _left_out(stage: StageEstimate) -> StageEstimate:
    """One of ``AFTER_EXTRACT``, in a run of one share."""
    basis = "not run: a run of one share ends after extract"
    return replace(stage, bytes=0, tokens=0, seconds=0.0, rate=None, rate_source="derived", basis=basis)


def _linked(stage: StageEstimate) -> StageEstimate:
    """A stage that another run has done."""
    kept = stage.bytes if stage.stage in COPIED else 0
    return replace(stage, bytes=kept, seconds=0.0, rate=None, rate_source="derived", basis="taken over from another run")


def _tok_s_at(level: int, known: Mapping[str, Rate], rate: str, judged: int) -> float:
    """Tokens/s at another number of requests in flight than the rate's: between it and a single stream on a logarithmic
    scale, and no more than it above."""
    most, alone = known[rate].value, known["single_tok_s"].value
    if level >= judged:
        return most
    return float(alone * (most / alone) ** (math.log(level) / math.log(judged)))


def _needs(spec: RunSpec, peak: int, samples: int, tokens: int, taken: Collection[str]) -> list[Need]:
    size = draft_size(spec)
    layers, hidden = len(spec.target.captured_layers), spec.target.hidden_size
    tokens = -(-tokens // spec.extract.world)
    states = tokens * size.state_bytes_a_token
    shape = f"{tokens:,} tokens x {layers} layers x {hidden} x {size.state_value_bytes} bytes"
    checkpoints = spec.train.keep_last + int(spec.train.keep_best) + 1
    parts = {
        "extract": f"hidden states {bytes_label(states)} ({shape})",
        "train": f"{checkpoints} checkpoints of {bytes_label(size.checkpoint_bytes)}, "
        f"3 drafts of {bytes_label(size.saved_bytes)}",
    }
    what = ", ".join([*(part for stage, part in parts.items() if stage not in taken), "texts and logs"])
    needs = [Need(spec.workspace, peak, ("extract" not in taken) * samples + 500, what)]
    if spec.target.source and spec.target.weights_bytes:
        needs.append(
            Need(spec.target.model, spec.target.weights_bytes, 200, f"the files of {spec.target.name}", unless=spec.target.model)
        )
    return needs


def refusal(need: Need, free_bytes: int, floor_bytes: int) -> str:
    """Why a disk is too small for a need, with the arithmetic; empty where it is large enough."""
    if free_bytes - need.bytes >= floor_bytes:
        return ""
    return (
        f"{need.path} has {bytes_label(free_bytes)} free, and the run needs {bytes_label(need.bytes)} "
        f"({need.what}) and keeps {bytes_label(floor_bytes)} free (disk_floor_bytes); "
        "free some space, choose another workspace, or lower data.train_prompts."
    )


def compare(estimated: Mapping[str, Any], actual: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """How far off an estimate was: for each stage the estimated and the actual figures, and their ratio (actual/estimated).

    ``estimated`` is an ``Estimate.to_json()``; ``actual`` has ``seconds``, ``bytes`` and ``tokens`` by stage, as far as known.
    """
    stages = {}
    for entry in estimated.get("stages", []):
        found = actual.get(entry["stage"], {})
        row: dict[str, Any] = {"rate_source": entry["rate_source"]}
        for figure in ("seconds", "bytes", "tokens"):
            if figure in found and entry[figure]:
                row[figure] = [round(entry[figure], 1), round(found[figure], 1)]
                row[f"{figure}_ratio"] = round(found[figure] / entry[figure], 3)
        stages[entry["stage"]] = row
    # Only of the stages whose time is known: those taken from another run took none here.
    known = [entry for entry in estimated.get("stages", []) if "seconds" in actual.get(entry["stage"], {})]
    expected = sum(entry["seconds"] for entry in known)
    took = sum(actual[entry["stage"]]["seconds"] for entry in known)
    whole = {"seconds": [round(expected, 1), round(took, 1)], "seconds_ratio": round(took / expected, 3)} if expected else {}
    return {**whole, "stages": stages}


def lines(found: Estimate) -> list[str]:
    """The estimate as a table for a terminal."""
    table = [f"{'stage':<11} {'bytes':>9} {'tokens':>13} {'time':>13} {'tokens/s':>9}  how known"]
    for stage in found.stages:
        rate = f"{stage.rate:,.0f}" if stage.rate else "–"
        table.append(
            f"{stage.stage:<11} {bytes_label(stage.bytes):>9} {stage.tokens:>13,} {duration_label(stage.seconds):>13} {rate:>9}"
            f"  {stage.rate_source}: {stage.basis}"
        )
    table.append(f"{'together':<11} {bytes_label(found.stage_bytes):>9} {'':>13} {duration_label(found.seconds):>13}")
    table.append(peak_line(found))
    table += [
        f"needs {'' if need.unless else 'at most '}{bytes_label(need.bytes)} in {need.path}: {need.what}" for need in found.needs
    ]
    return table + break_even_lines(found) + [f"problem: {problem}" for problem in found.problems]


def peak_line(found: Estimate) -> str:
    """The most on the disk at any time, and what it is made of."""
    return f"at most {bytes_label(found.peak_bytes)} at a time: {peak_parts(found)}"


def peak_parts(found: Estimate) -> str:
    """What the most on the disk is made of: what stays, and what is there only for a while."""
    stays = f"{bytes_label(found.stage_bytes)} of the stages, {bytes_label(found.log_bytes)} of logs"
    return f"{stays}, {bytes_label(found.transient_bytes)} {FOR_A_WHILE}" if found.transient_bytes else stays


def break_even_lines(found: Estimate) -> list[str]:
    """From which acceptance length on the draft will pay, or how to learn it before the hours are paid."""
    told = [
        f"a draft pays from an acceptance length of {rate.value:.2f} on, {level} in flight  {rate.source}: {rate.basis}"
        for level, rate in found.break_even.items()
    ]
    return told or ["from which acceptance length on a draft pays here is not known: `eagle3 breakeven` measures it"]
