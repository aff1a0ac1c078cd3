"""The evaluation of a draft that nothing here can serve: no figure, the verdict "insufficient evidence", and why.

Only vLLM speculates. A run whose answers and states came from transformers may have no vLLM at all; its draft is whole all the
same, and can be evaluated by a fork where there is one.
"""

from __future__ import annotations

import subprocess
from typing import Any

from eagle3.core.acceptance import Acceptance
from eagle3.core.verdict import Evidence, judge
from eagle3.runner import rundir
from eagle3.stages.context import StageContext
from eagle3.versions import versions_here

SERVED, LOSSLESS = "evaluate/served.json", "evaluate/lossless.json"

_LOOK_LIMIT_S = 120.0
_HAS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"


def reason(ctx: StageContext) -> str:
    """Why the draft cannot be served, as a sentence; empty where it can. Only asked where the spec does without vLLM: else a
    missing one is an error of the server's start."""
    if ctx.spec.engine == "vllm":
        return ""
    try:
        done = subprocess.run(
            [ctx.server_python, "-c", _HAS_VLLM],
            cwd=ctx.path("logs", "x").parent, capture_output=True, timeout=_LOOK_LIMIT_S, check=False,
        )  # fmt: skip
        found = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        found = False
    if found:
        return ""
    return (
        f"the engine is transformers, which does not speculate, and {ctx.server_python} has no vLLM; set server_python to one "
        "that has, and resume the run with a fork of this stage"
    )


def write(ctx: StageContext, why: str) -> dict[str, Any]:
    """Write both files of the stage without a measurement; the figures. Nothing that was not measured gets a number."""
    nothing = Acceptance(0, 0, 0, (0,) * ctx.spec.evaluate.num_speculative_tokens)
    evaluate = ctx.spec.evaluate
    verdict = judge(
        Evidence(nothing, tok_s=None, tok_s_no_draft=None, concurrency=evaluate.concurrency, prompts=0),
        min_drafts=evaluate.min_drafts,
        broken_below=evaluate.broken_below,
        min_prompts=evaluate.min_prompts,
    ).to_json()
    unmeasured = {"accept_len": None, "accept_len_interval": None}
    figures: dict[str, Any] = {
        "served": {**nothing.figures(), **unmeasured, "prompts": 0, "concurrency": evaluate.concurrency},
        "lossless": {"identical": 0, "of": 0, "tokens": 0, "divergences": []},
        "untrained": rundir.read_json(ctx.run_dir / "train" / "floor.json", default={}),
        **verdict,
        "verdict_text": f"Insufficient evidence: the draft was not served; {why}.",
        "thresholds": {**verdict["thresholds"], **unmeasured, "possible_speedup": None},
        "versions": versions_here(),
    }
    rundir.write_json(ctx.path(LOSSLESS), {"v": 1, **figures["lossless"], "without": []})
    rundir.write_json(ctx.path(SERVED), {"v": 1, "key": "", "figures": figures})
    ctx.journal.event("verdict", figures["verdict_text"], level="warn")
    return figures
