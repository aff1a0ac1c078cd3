"""Stage evaluate: the trained draft behind a real vLLM server, held against the same server without it.

Leaves ``evaluate/served.json`` (acceptance by vLLM's own counters, the speeds, the verdict) and
``evaluate/lossless.json`` (whether the answers stay the same). The server differs from the plain one by
``--speculative_config`` alone, and by the argument that makes answers tell their acceptance where vLLM has it. With
``evaluate.ngram`` a third server speculates from the text before. A killed attempt starts over: half a measurement is none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from eagle3 import draft_folder
from eagle3.core.evaluation import Point, kind_figures
from eagle3.core.lossless import TIE_GAP, Lossless, compare
from eagle3.core.serving import measured_part, speculative_method
from eagle3.core.spec import MODEL_FIELDS, RunSpec, hash_of
from eagle3.core.verdict import Evidence, Verdict, judge
from eagle3.engines.choice import engine_part, measured_server, speculating_server
from eagle3.engines.model_dir import fingerprint
from eagle3.runner import rundir
from eagle3.stages import baseline, measuring, unserved
from eagle3.stages.context import StageContext
from eagle3.stages.measuring import Measured
from eagle3.stages.prompts import content_hash
from eagle3.stages.serving import Prompt, RunningServer, heldout_prompts, measure_single_stream, server_versions
from eagle3.targets import model_dir
from eagle3.versions import versions_here

STAGE = "evaluate"
SERVED = "evaluate/served.json"
LOSSLESS = "evaluate/lossless.json"
OUTPUTS = (SERVED, LOSSLESS)

NGRAM_WORDS = (2, 4)
"""How many tokens must have been there before, at least and at most, for n-gram speculation to propose what followed."""


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What makes the stage run again when it changes."""
    return {
        "evaluate": spec.evaluate.settings(),
        "server": measured_part(spec),
        "target": spec.target.model_dump(include=MODEL_FIELDS | {"auxiliary_layers"}),
        "model": fingerprint(model_dir(spec.target.model)),
        "device": spec.device,
    } | engine_part(spec)


def run(ctx: StageContext) -> dict[str, Any]:
    """Measure and judge. Raises StageError where the draft is missing or not whole, the server cannot load it, or a request
    fails; Stopped on a stop."""
    ctx.check_disk()
    draft_sha256 = draft_folder.check(ctx.run_dir / "train" / "draft").sha256
    if why := unserved.reason(ctx):
        return unserved.write(ctx, why)
    plain = baseline.load(ctx)
    if plain is not None and (whole := _left_whole(ctx, _key(ctx, draft_sha256, plain))) is not None:
        ctx.journal.event("evaluate", "The draft was evaluated before, under these settings; the figures stand.")
        return whole
    if plain is None:
        ctx.journal.event("baseline", "There is no baseline for these settings; a plain server is started to measure one.")
        with measured_server(ctx) as server:
            plain = server.surviving(lambda: baseline.measure(ctx, server, stage=STAGE))
    against = plain
    with speculating_server(ctx, "draft", speculative_args(ctx)) as server:
        draft = server.surviving(lambda: measure_draft(ctx, server, against))
        about = {"server_start_s": round(server.start_s, 2), "versions": {**versions_here(), **server_versions(server)}}
    ngram: dict[int, Measured] = {}
    if ctx.spec.evaluate.ngram:
        with speculating_server(ctx, "ngram", ngram_args(ctx)) as server:
            ngram = server.surviving(lambda: _at_each_level(ctx, server, "n-grams"))
    evidence = _evidence(ctx, draft, ngram, plain)
    asked = ctx.spec.evaluate
    verdict = judge(evidence, min_drafts=asked.min_drafts, broken_below=asked.broken_below, min_prompts=asked.min_prompts)
    figures = {**_figures(ctx, evidence, draft, plain, verdict), **about}
    _write(ctx, figures, draft.lossless, plain, _key(ctx, draft_sha256, plain), _each(ctx, draft, ngram))
    return figures


@dataclass(frozen=True)
class DraftMeasured:
    """What the server with the draft gave: by requests in flight, by temperature above 0, by kind of prompt, word for word."""

    levels: dict[int, Measured]
    sampled: dict[float, Measured]
    kinds: dict[str, dict[str, Any]]
    lossless: Lossless


def speculative_args(ctx: StageContext) -> list[str]:
    """What the draft server has and the plain one has not."""
    config = {
        **speculative_method(ctx.spec),
        "model": str((ctx.run_dir / "train" / "draft").resolve()),
        "num_speculative_tokens": ctx.spec.evaluate.num_speculative_tokens,
    }
    tells = measuring.tells_each_answer(ctx.server_python, ctx.path("logs", "server-draft.log").parent)
    return ["--speculative_config", json.dumps(config), *(measuring.EACH_ANSWER if tells else [])]


def ngram_args(ctx: StageContext) -> list[str]:
    """What makes a server propose what followed the same words before, in the prompt or the answer."""
    config = {
        "method": "ngram",
        "num_speculative_tokens": ctx.spec.evaluate.num_speculative_tokens,
        "prompt_lookup_min": NGRAM_WORDS[0],
        "prompt_lookup_max": NGRAM_WORDS[1],
    }
    return ["--speculative_config", json.dumps(config)]


def measure_draft(ctx: StageContext, server: RunningServer, plain: dict[str, Any]) -> DraftMeasured:
    """Measure the server with the draft: the loads, whose counters give the acceptance, then the single stream against the
    baseline ``plain``. Raises StageError where a request fails or the counters are not there."""
    prompts = heldout_prompts(ctx, ctx.spec.evaluate.prompts)
    compared = baseline.lossless_prompts(ctx, prompts)
    sampled = ctx.spec.evaluate.sampled
    progress = _Progress(ctx, "with the draft", len(prompts) * (len(ctx.spec.evaluate.levels) + len(sampled)) + len(compared))
    levels = _loads(ctx, server, prompts, progress)
    warm = {}
    for temperature in sampled:
        warm[temperature] = measuring.measure(ctx, server, prompts, progress, temperature=temperature)
        progress.finished(len(prompts))
    asked = (ctx, server, compared, baseline.lossless_tokens(ctx), progress)
    lossless = compare(baseline.answers_of(plain), measure_single_stream(*asked), TIE_GAP[ctx.spec.target.dtype])
    progress.finished(len(compared))
    return DraftMeasured(levels, warm, _kinds(ctx, server, prompts, levels), lossless)


class _Progress:
    """Progress over several measurements: called with the prompts answered of the present one."""

    def __init__(self, ctx: StageContext, reason: str, total: int) -> None:
        self._ctx, self._reason, self._total = ctx, reason, total
        self._before = 0
        quiet_s = ctx.spec.regenerate.request_timeout_s  # what a request of a measurement may take
        ctx.journal.progress(STAGE, 0, total, "prompts", quiet_s=quiet_s, reason=reason)

    def __call__(self, count: int, *, force: bool = False) -> None:
        self._ctx.journal.progress(STAGE, self._before + count, self._total, "prompts", reason=self._reason, force=force)

    def finished(self, count: int) -> None:
        """A measurement of so many prompts is over."""
        self._before += count
        self(0, force=True)


def _loads(ctx: StageContext, server: RunningServer, prompts: list[Prompt], progress: _Progress) -> dict[int, Measured]:
    found = {}
    # The one that the verdict is about comes first, as in the baseline.
    for level in (ctx.spec.evaluate.concurrency, *baseline.other_levels(ctx)):
        found[level] = measuring.measure(ctx, server, prompts, progress, concurrency=level)
        progress.finished(len(prompts))
    return found


def _at_each_level(ctx: StageContext, server: RunningServer, what: str) -> dict[int, Measured]:
    prompts = heldout_prompts(ctx, ctx.spec.evaluate.prompts)
    return _loads(ctx, server, prompts, _Progress(ctx, f"with {what}", len(prompts) * len(ctx.spec.evaluate.levels)))


def _kinds(ctx: StageContext, server: RunningServer, prompts: list[Prompt], levels: dict[int, Measured]) -> dict[str, Any]:
    """Acceptance by kind of prompt, at ``evaluate.concurrency`` and temperature 0."""
    main = levels[ctx.spec.evaluate.concurrency]
    kinds = {prompt.kind for prompt in prompts}
    if len(kinds) == 1:
        return {kinds.pop(): kind_figures(main.acceptance, len(prompts))}
    if main.kinds or any(one is not None for one in main.load.of_each):
        return main.kinds
    return measuring.kinds_one_by_one(ctx, server, prompts)


def _evidence(ctx: StageContext, draft: DraftMeasured, ngram: dict[int, Measured], plain: dict[str, Any]) -> Evidence:
    without = baseline.loads_of(plain)
    points = tuple(
        Point(
            level,
            baseline.speed_of(without[level]),
            measured.speed,
            ngram[level].speed if level in ngram else None,
        )
        for level, measured in sorted(draft.levels.items())
    )
    main = draft.levels[ctx.spec.evaluate.concurrency]
    return Evidence(
        main.acceptance,
        tok_s=main.load.tok_s,
        tok_s_no_draft=float(plain["tok_s_no_draft"]),
        concurrency=main.load.concurrency,
        lossless=draft.lossless,
        other_cpu=max(max(point.plain.other_cpu, point.draft.other_cpu) for point in points),
        simulated_first=_first(ctx.figures.get("train", {}).get("val", {}).get("acc_pos")),
        points=points,
        prompts=main.load.requests,
    )


def _each(ctx: StageContext, draft: DraftMeasured, ngram: dict[int, Measured]) -> dict[str, Any]:
    """What the intervals are made of, so that they can be made anew: by what was served, each answer of each load. Those
    without a draft are in the baseline."""
    return {
        "prompts": [prompt.id for prompt in heldout_prompts(ctx, ctx.spec.evaluate.prompts)],
        "draft": {str(level): measured.each_json() for level, measured in sorted(draft.levels.items())},
        "sampled": {f"{temperature:g}": measured.each_json() for temperature, measured in draft.sampled.items()},
        "ngram": {str(level): measured.each_json() for level, measured in sorted(ngram.items())},
    }


def _figures(
    ctx: StageContext, evidence: Evidence, draft: DraftMeasured, plain: dict[str, Any], verdict: Verdict
) -> dict[str, Any]:
    lossless, load = draft.lossless, draft.levels[ctx.spec.evaluate.concurrency].load
    return {
        "served": {
            **evidence.acceptance.figures(),
            "prompts": load.requests,
            "num_speculative_tokens": ctx.spec.evaluate.num_speculative_tokens,
            "concurrency": load.concurrency,
            "tokens": load.tokens,
            "wall_s": round(load.wall_s, 2),
            "tok_s": round(load.tok_s, 3),
            "tok_s_no_draft": plain["tok_s_no_draft"],
            "tokens_no_draft": plain["load"]["tokens"],
            "wall_s_no_draft": plain["load"]["wall_s"],
            "other_cpu": round(load.other_cpu, 3),
            "other_cpu_no_draft": plain["load"]["other_cpu"],
            "speedup": verdict.thresholds["speedup"],
            "speedup_interval": verdict.thresholds["speedup_intervals"].get(str(load.concurrency)),
            "break_even_len": verdict.thresholds["break_even_len"],
        },
        "kinds": draft.kinds,
        "curve": [point.to_json() | _kinds_at(draft.levels[point.concurrency]) for point in evidence.points],
        # Sampled text differs from run to run, so nothing is said of its losslessness or speed.
        "temperatures": [
            {"temperature": temperature, **kind_figures(found.acceptance, found.load.requests), "kinds": found.kinds}
            for temperature, found in draft.sampled.items()
        ],
        "lossless": {
            "identical": lossless.identical,
            "of": lossless.of,
            "tokens": lossless.tokens,
            "tie_gap": lossless.tie_gap,
            "divergences": lossless.to_json()["divergences"],
        },
        # Held-out accuracy of the untrained draft, simulated: the floor that training had to leave.
        "untrained": rundir.read_json(ctx.run_dir / "train" / "floor.json", default={}),
        **verdict.to_json(),
    }


def _kinds_at(measured: Measured) -> dict[str, Any]:
    """For a row of the curve: acceptance by kind, where the server's answers tell their own."""
    return {"kinds": measured.kinds} if measured.kinds else {}


def _first(acc_pos: list[float | None] | None) -> float | None:
    return acc_pos[0] if acc_pos else None


def _key(ctx: StageContext, draft_sha256: str, plain: dict[str, Any]) -> str:
    """A hash of the draft, the baseline and the settings that the stage's files belong to."""
    return hash_of({"draft": draft_sha256, "baseline": plain, **spec_part(ctx.spec)})


def _left_whole(ctx: StageContext, key: str) -> dict[str, Any] | None:
    """The figures that an attempt wrote before it was killed, where both files stand and belong to this draft."""
    found = rundir.read_json(ctx.run_dir / SERVED)
    if not isinstance(found, dict) or found.get("key") != key or found.get("lossless") != content_hash(ctx.run_dir / LOSSLESS):
        return None
    figures: dict[str, Any] = found["figures"]
    return figures


def _write(
    ctx: StageContext, figures: dict[str, Any], lossless: Lossless, plain: dict[str, Any], key: str, each: dict[str, Any]
) -> None:
    served = figures["served"]
    # served.json last: where it stands, both are whole.
    rundir.write_json(ctx.path(LOSSLESS), {"v": 1, **lossless.to_json(), "without": plain["answers"]})
    beside = content_hash(ctx.run_dir / LOSSLESS)
    rundir.write_json(ctx.path(SERVED), {"v": 1, "key": key, "lossless": beside, "figures": figures, "each": each})
    steps = ctx.figures.get("train", {}).get("steps", 0)
    ctx.journal.metrics(
        STAGE,
        int(steps),
        split="val",
        acc_pos=served["acc_pos"],
        accept_len=served["accept_len"],
        tok_s=served["tok_s"],
    )
    for divergence in lossless.divergences:
        ctx.journal.event("lossless", divergence.sentence(), level="info" if divergence.tie else "error")
    ctx.journal.event("verdict", figures["verdict_text"])
