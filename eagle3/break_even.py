"""The acceptance length that a draft must reach to pay for itself on this machine, found before anything is trained.

Three short things: the target answers some held-out prompts on a plain server; an untrained draft of the run's shape is made;
the same prompts are answered with it. Drafting and verifying cost the same whatever is accepted, so the two speeds give the
length (``core.evaluation.break_even``). On a GPU vLLM accepts drafted tokens at a set length by itself (its synthetic
acceptance), so the speed is that of a draft which is as good; its CPU build refuses that, and there the length is derived from
the speed of a draft of which next to nothing is accepted.

It is asked before the paid hours, so it is short: `shortened` says how few prompts and tokens, `expected` how long they take.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.core.estimate import IMPORT_S, loads_s
from eagle3.core.evaluation import Point, Speed
from eagle3.core.rates import BREAK_EVEN_BY, RateSource, break_even_name, key, rates
from eagle3.core.serving import speculative_method
from eagle3.core.spec import RunSpec
from eagle3.core.verdict import BUSY_ABOVE
from eagle3.core.wording import duration_label
from eagle3.engines.vllm_server import VllmServer
from eagle3.journal import Journal
from eagle3.measured import remember
from eagle3.runner import keeper, rundir
from eagle3.stages import measuring, prepare
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.serving import Prompt, heldout_prompts, measure_load, warm_up
from eagle3.targets import model_dir
from eagle3.work import bring_target

SYNTHETIC_LENGTH = 2.0
"""The acceptance length that vLLM is told to make up: near what a draft must reach, and possible for one proposed token."""

MOST_TOKENS = 128
"""Tokens of an answer at most: a step takes as long in a longer one, but for the little that attention adds."""

MAKE_LIMIT_S = 900.0
"""How long making the untrained draft may take: imports, and reading the target's embeddings."""


@dataclass(frozen=True)
class Found:
    """The speeds, and how the break-even lengths came about."""

    points: list[Point]
    source: RateSource
    prompts: int

    def to_json(self) -> dict[str, Any]:
        """What ``eagle3 breakeven --json`` prints."""
        return {"v": 1, "source": self.source, "prompts": self.prompts, "curve": [point.to_json() for point in self.points]}

    def lines(self) -> list[str]:
        """One sentence for each number of requests in flight."""
        how = "measured with vLLM's synthetic acceptance" if self.source == "measured" else "derived from the measured speeds"
        busy = max(max(point.plain.other_cpu, point.draft.other_cpu) for point in self.points)
        rough = [f"These speeds are rough: other work took up to {busy:.0%} of the CPU meanwhile."] if busy > BUSY_ABOVE else []
        return rough + [
            f"{point.concurrency} in flight: a draft pays from an acceptance length of {point.break_even_len or 0.0:.2f}"
            f"{_spread(point)} on ({point.plain.tok_s:.1f} tokens/s without, {point.draft.tok_s:.1f} at a length of "
            f"{point.draft.acceptance.accept_len if point.draft.acceptance else 1.0:.2f}; {self.prompts} prompts; {how})."
            for point in self.points
        ]


def shortened(spec: RunSpec) -> RunSpec:
    """What is measured of a run's spec: as many held-out prompts as are ever in flight, of MOST_TOKENS tokens at most, and none
    of the run's training prompts. The speeds need no more, and the run's own evaluation may take an hour."""
    few = max(spec.evaluate.levels)
    evaluate = {"prompts": few, "max_new_tokens": min(spec.evaluate.max_new_tokens, MOST_TOKENS)}
    # prepare asks for room and prompts for the training too; here there is none.
    data = {"train_prompts": 1, "heldout_prompts": min(spec.data.heldout_prompts, max(4, few))}
    return spec.model_copy(
        update={"evaluate": spec.evaluate.model_copy(update=evaluate), "data": spec.data.model_copy(update=data)}
    )


def expected(spec: RunSpec, measured: Mapping[str, Any] | None = None) -> tuple[float, str]:
    """Seconds that ``measure`` will take, and a sentence with what they are made of, by the estimate's rates. ``measured``: the
    workspace's own (``measured.rates_of``)."""
    short = shortened(spec)
    known = rates(short, measured)
    start = known["server_start_s"]
    loads = loads_s(short, known, "plain_tok_s") + loads_s(short, known, "draft_tok_s")
    seconds = 2 * start.value + loads + IMPORT_S
    judged = short.evaluate
    return seconds, (
        f"This takes about {duration_label(seconds)}: two starts of the server ({duration_label(start.value)} each, "
        f"{start.source}) and {duration_label(loads)} of {judged.prompts} prompts with {judged.max_new_tokens} tokens each at "
        f"concurrency {', '.join(map(str, judged.levels))}, without and with a draft ({known['plain_tok_s'].source})."
    )


def measure(spec: RunSpec, stop_requested: Callable[[], bool]) -> Found:
    """Measure ``shortened(spec)``, and put the lengths down for the workspace's estimates. Its files are in
    ``<workspace>/break-even/``.

    Raises StageError in one sentence, and Stopped.
    """
    spec = shortened(spec)
    workspace = Path(spec.workspace).expanduser()
    folder = workspace / "break-even" / key(spec).replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    worker = spec.worker_python or sys.executable
    ctx = StageContext(
        folder, spec, Journal(folder, 1), model_dir(spec.target.model), worker, spec.server_python or worker, stop_requested
    )
    bring_target(ctx)
    prepare.run(ctx)
    prompts = heldout_prompts(ctx, spec.evaluate.prompts)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(keeper.keeping(ctx.path("logs", "keeper.log")))
        except OSError as error:
            text = f"The keeper that ends the servers if this command is killed could not be started ({error}); put that right."
            raise StageError(text) from error
        points = _points(ctx, prompts)
    if lacking := [point.concurrency for point in points if point.break_even_len is None]:
        raise StageError(
            f"The draft server drafted nothing at concurrency {lacking[0]}; see {ctx.path('logs', 'server-draft.log')}."
        )
    found = Found(points, "measured" if _synthetic(spec) else "derived", len(prompts))
    lengths = {break_even_name(spec, point.concurrency): point.break_even_len or 0.0 for point in points}
    tokens = {name: float(len(prompts) * spec.evaluate.max_new_tokens) for name in lengths}
    remember(workspace, spec, BREAK_EVEN_BY[found.source], lengths, tokens=tokens)
    rundir.write_json(folder / "break-even.json", {**found.to_json(), "t": time.time()})
    return found


def _spread(point: Point) -> str:
    found = point.break_even_interval
    return f" ({found[0]:.2f} to {found[1]:.2f})" if found else ""


def _points(ctx: StageContext, prompts: Sequence[Prompt]) -> list[Point]:
    """The speeds without a draft and with an untrained one, at each concurrency."""
    levels = ctx.spec.evaluate.levels
    _make_untrained(ctx)
    with VllmServer(ctx, "plain", stage="evaluate") as server:
        plain = {level: _plain(ctx, server, prompts, level) for level in levels}
    with VllmServer(ctx, "draft", extra_args=_speculative(ctx), stage="evaluate") as server:
        return [Point(level, plain[level], measuring.measure(ctx, server, prompts, concurrency=level).speed) for level in levels]


def _plain(ctx: StageContext, server: VllmServer, prompts: Sequence[Prompt], level: int) -> Speed:
    warm_up(ctx, server, prompts, level)
    load = measure_load(ctx, server, prompts, concurrency=level)
    return Speed(load.tok_s, other_cpu=load.other_cpu, each=load.each)


def _synthetic(spec: RunSpec) -> bool:
    """The CPU build of vLLM ends at the first request with "Synthetic acceptance not supported with CPU sampling"."""
    return spec.device != "cpu"


def _speculative(ctx: StageContext) -> list[str]:
    config: dict[str, Any] = {
        **speculative_method(ctx.spec),
        "model": str((ctx.run_dir / "draft").resolve()),
        "num_speculative_tokens": ctx.spec.evaluate.num_speculative_tokens,
    }
    if _synthetic(ctx.spec):
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": SYNTHETIC_LENGTH}
    return ["--speculative_config", json.dumps(config)]


def _make_untrained(ctx: StageContext) -> None:
    ctx.journal.log("Making an untrained draft of the run's shape.")
    spec_toml = ctx.path("spec.toml")
    spec_toml.write_text(ctx.spec.to_toml(), encoding="utf-8")
    home = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    command = [ctx.worker_python, "-m", "eagle3.training.untrained", str(spec_toml), str(ctx.model_dir), str(ctx.run_dir)]
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=MAKE_LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": paths}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"{ctx.worker_python} cannot make an untrained draft ({error}); set worker_python.") from error
    if made.returncode != 0:
        last = next((line for line in reversed(made.stderr.splitlines()) if line.strip()), "it says nothing")
        raise StageError(f"No untrained draft of {ctx.spec.target.name} could be made: {last}", detail=made.stderr)
