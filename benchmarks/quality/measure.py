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
from benchmarks.quality.runs import PILOT, QUICK, TRAINED, UNTRAINED, Planned, finish
from eagle3.core.records import Result


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


def figures(found: dict[str, Result]) -> Figures:
    """The figures of the results, by run id. A length's spread is its 95 % interval, its n the drafts that it is of."""
    lengths = {name: _length(result.served) for name, result in found.items()}
    simulated = {name: Figure(float(result.val["accept_len"]), "tokens") for name, result in found.items()}
    return {
        **{f"acceptance length served, {name}": figure for name, figure in lengths.items()},
        **{f"position 0 accepted, {name}": _first(result.served) for name, result in found.items()},
        "gap between the intervals, trained over pilot": _gap(lengths["trained"], lengths["pilot"]),
        "gap between the intervals, trained over untrained": _gap(lengths["trained"], lengths["untrained"]),
        **{f"acceptance length simulated, {name}": figure for name, figure in simulated.items()},
        "speed with the draft ÷ without, trained": Figure(float(found["trained"].served["speedup"]), "×"),
    }


def _gap(better: Figure, worse: Figure) -> Figure:
    """From the worse one's upper end to the better one's lower end: under zero, the two cannot be told apart."""
    assert better.spread is not None and worse.spread is not None
    return Figure(better.spread[0] - worse.spread[1], "tokens", ">= 0")


def _length(served: dict[str, Any]) -> Figure:
    low, high = served["accept_len_interval"]
    return Figure(served["accept_len"], "tokens", None, served["drafts"], (low, high))


def _first(served: dict[str, Any]) -> Figure:
    low, high = served["acc_pos_intervals"][0]
    return Figure(served["acc_pos"][0], "of 1", None, served["drafts"], (low, high))
