"""Stage evaluate: the trained draft behind a real vLLM server, held against the same server without it.

Leaves ``evaluate/served.json`` (acceptance by vLLM's own counters, both speeds, the verdict) and
``evaluate/lossless.json`` (whether the answers stay the same). The server differs from the plain one by
``--speculative_config`` alone. A killed attempt starts over: half a measurement is none.
"""

from __future__ import annotations

import json
from typing import Any

from eagle3 import draft_folder
from eagle3.core.acceptance import Acceptance, between
from eagle3.core.lossless import TIE_GAP, Lossless, compare
from eagle3.core.serving import measured_part, speculative_method
from eagle3.core.spec import MODEL_FIELDS, RunSpec, hash_of
from eagle3.core.verdict import Evidence, Verdict, judge
from eagle3.engines.choice import engine_part, measured_server, speculating_server
from eagle3.engines.model_dir import fingerprint
from eagle3.runner import rundir
from eagle3.stages import baseline, unserved
from eagle3.stages.context import StageContext
from eagle3.stages.serving import (
    Load,
    RunningServer,
    heldout_prompts,
    measure_load,
    measure_single_stream,
    server_versions,
    settled_counters,
    warm_up,
)
from eagle3.targets import model_dir
from eagle3.versions import versions_here

STAGE = "evaluate"
SERVED = "evaluate/served.json"
LOSSLESS = "evaluate/lossless.json"
OUTPUTS = (SERVED, LOSSLESS)


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What makes the stage run again when it changes."""
    return {
        "evaluate": spec.evaluate.model_dump(),
        "server": measured_part(spec),
        "target": spec.target.model_dump(include=MODEL_FIELDS | {"auxiliary_layers"}),
        "model": fingerprint(model_dir(spec.target.model)),
        "device": spec.device,
    } | engine_part(spec)


def run(ctx: StageContext) -> dict[str, Any]:
    """Measure and judge. Raises StageError where the draft is missing or not whole, the server cannot load it, or a request
    fails; Stopped on a stop."""
    ctx.check_disk()
    draft = ctx.run_dir / "train" / "draft"
    draft_sha256 = draft_folder.check(draft).sha256
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
        acceptance, load, lossless = server.surviving(lambda: measure_draft(ctx, server, against))
        about = {"server_start_s": round(server.start_s, 2), "versions": {**versions_here(), **server_versions(server)}}
    evidence = Evidence(
        acceptance,
        tok_s=load.tok_s,
        tok_s_no_draft=float(plain["tok_s_no_draft"]),
        concurrency=load.concurrency,
        lossless=lossless,
        other_cpu=max(load.other_cpu, float(plain["load"]["other_cpu"])),
        simulated_first=_first(ctx.figures.get("train", {}).get("val", {}).get("acc_pos")),
    )
    verdict = judge(evidence, min_drafts=ctx.spec.evaluate.min_drafts, broken_below=ctx.spec.evaluate.broken_below)
    figures = {**_figures(ctx, evidence, load, plain, verdict), **about}
    _write(ctx, figures, lossless, plain, _key(ctx, draft_sha256, plain))
    return figures


def speculative_args(ctx: StageContext) -> list[str]:
    """What the draft server has and the plain one has not."""
    config = {
        **speculative_method(ctx.spec),
        "model": str((ctx.run_dir / "train" / "draft").resolve()),
        "num_speculative_tokens": ctx.spec.evaluate.num_speculative_tokens,
    }
    return ["--speculative_config", json.dumps(config)]


def measure_draft(ctx: StageContext, server: RunningServer, plain: dict[str, Any]) -> tuple[Acceptance, Load, Lossless]:
    """Measure the server with the draft against the baseline ``plain``: first the load, whose counters give the acceptance,
    then the single stream. Raises StageError where the counters contradict each other."""
    prompts = heldout_prompts(ctx, ctx.spec.evaluate.prompts)
    compared = baseline.lossless_prompts(ctx, prompts)
    total = len(prompts) + len(compared)
    ctx.journal.progress(STAGE, 0, total, "prompts", reason="with the draft")
    warm_up(ctx, server, prompts)
    # Read after the warm-up, so that it is in no figure.
    before = settled_counters(server)
    load = measure_load(
        ctx, server, prompts, lambda n: ctx.journal.progress(STAGE, n, total, "prompts", reason="with the draft", force=False)
    )
    acceptance = between(before, settled_counters(server))
    if problems := acceptance.problems():
        ctx.journal.event("counters", " ".join(problems), level="warn")
    answers = measure_single_stream(
        ctx,
        server,
        compared,
        baseline.lossless_tokens(ctx),
        lambda n: ctx.journal.progress(STAGE, len(prompts) + n, total, "prompts", reason="with the draft", force=False),
    )
    lossless = compare(baseline.answers_of(plain), answers, TIE_GAP[ctx.spec.target.dtype])
    ctx.journal.progress(STAGE, total, total, "prompts", reason="with the draft")
    return acceptance, load, lossless


def _figures(ctx: StageContext, evidence: Evidence, load: Load, plain: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    lossless = evidence.lossless
    assert lossless is not None
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
            "break_even_len": verdict.thresholds["break_even_len"],
        },
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


def _first(acc_pos: list[float | None] | None) -> float | None:
    return acc_pos[0] if acc_pos else None


def _key(ctx: StageContext, draft_sha256: str, plain: dict[str, Any]) -> str:
    """A hash of the draft, the baseline and the settings that the stage's files belong to."""
    return hash_of({"draft": draft_sha256, "baseline": plain, **spec_part(ctx.spec)})


def _left_whole(ctx: StageContext, key: str) -> dict[str, Any] | None:
    """The figures that an attempt wrote before it was killed, where both files stand and belong to this draft."""
    found = rundir.read_json(ctx.run_dir / SERVED)
    if not isinstance(found, dict) or found.get("key") != key or not (ctx.run_dir / LOSSLESS).is_file():
        return None
    figures: dict[str, Any] = found["figures"]
    return figures


def _write(ctx: StageContext, figures: dict[str, Any], lossless: Lossless, plain: dict[str, Any], key: str) -> None:
    served = figures["served"]
    # served.json last: where it stands, both are whole.
    rundir.write_json(ctx.path(LOSSLESS), {"v": 1, **lossless.to_json(), "without": plain["answers"]})
    rundir.write_json(ctx.path(SERVED), {"v": 1, "key": key, "figures": figures})
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
