"""The part ``quality``: served acceptance on prompts of another kind, after a training of 240 prompts, after the pilot's, and
after none. About 35 minutes on two quiet cores. Its acceptance does not depend on what else the machine does; its speeds do.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Figures
from benchmarks.options import Options
from benchmarks.quality.runs import PILOT, QUICK, TRAINED, UNTRAINED, Judged, Planned, finish
from eagle3.core.intervals import difference_interval


def measure(options: Options) -> Figures:
    """Train and serve them one after another. In ``options.workspace`` runs that stand there go on and stay; without one, a
    folder is made for them and removed."""
    kept = options.workspace
    workspace = kept or Path(tempfile.mkdtemp(prefix="eagle3-quality-"))
    try:
        found = {planned.run_id: finish(_sized(planned, options), workspace) for planned in (TRAINED, PILOT, UNTRAINED)}
    finally:
        if kept is None:
            shutil.rmtree(workspace, ignore_errors=True)
    return figures(found)


def _sized(planned: Planned, options: Options) -> Planned:
    quick = {} if planned.fork_of or not options.quick else QUICK
    return dataclasses.replace(planned, changes={**quick, **planned.changes})


def figures(found: dict[str, Judged]) -> Figures:
    """The figures of the runs, by run id. A spread is a 95 % interval for other prompts like these, n its answers."""
    results = {name: judged.result for name, judged in found.items()}
    return {
        **{f"acceptance length served, {name}": _length(result.served) for name, result in results.items()},
        **{f"position 0 accepted, {name}": _first(result.served) for name, result in results.items()},
        "trained is longer than pilot by at least": _longer(found["trained"], found["pilot"]),
        "trained is longer than untrained by at least": _longer(found["trained"], found["untrained"]),
        **{
            f"acceptance length simulated, {name}": Figure(float(result.val["accept_len"]), "tokens")
            for name, result in results.items()
        },
        "speed with the draft ÷ without, trained": Figure(float(results["trained"].served["speedup"]), "×"),
    }


def _longer(better: Judged, worse: Judged) -> Figure:
    """The lower end of the difference's 95 % interval, prompt by prompt; the spread is the whole of it. Under zero, the two
    cannot be told apart."""
    low, high = difference_interval(better.answers, worse.answers)
    return Figure(low, "tokens", ">= 0", len(better.answers), (low, high))


def _length(served: dict[str, Any]) -> Figure:
    low, high = served["accept_len_interval"]
    return Figure(served["accept_len"], "tokens", None, served["answers"], (low, high))


def _first(served: dict[str, Any]) -> Figure:
    low, high = served["acc_pos_intervals"][0]
    return Figure(served["acc_pos"][0], "of 1", None, served["answers"], (low, high))
