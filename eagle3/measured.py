"""Rates that the runs of a workspace have measured, in ``<workspace>/rates.json``; the estimate takes them before all others."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from eagle3.core.rates import key, known
from eagle3.core.spec import RunSpec
from eagle3.runner import rundir
from eagle3.runner.rates import FILE, measured


def rates_of(workspace: Path, spec: RunSpec) -> dict[str, Any]:
    """What the workspace knows of this machine and target: rate → ``{"value", "tokens", "run", "t"}``; empty where nothing is
    known."""
    return dict(known(measured(workspace), spec))


KEEP_FACTOR = 4
"""A rate measured over so many times more tokens than the new one stays: a smoke run teaches a pilot little."""


def remember(
    workspace: Path,
    spec: RunSpec,
    run_id: str,
    found: Mapping[str, float],
    *,
    tokens: Mapping[str, float] | None = None,
    of_steps: Collection[str] = (),
    now: float | None = None,
) -> None:
    """Write down what a run has measured. ``found``: name of the rate (``core.rates``) → figure; ``tokens``: over how many;
    ``of_steps``: those that are of a training's steps alone, without the scorings between them.

    The latest one counts, unless an earlier one was measured over more than KEEP_FACTOR times the tokens. Two runs that end in
    the same moment may lose one another's row; the next run writes it again.
    """
    t = time.time() if now is None else now
    table = rundir.read_object(workspace / FILE)
    rates = table.get("rates")
    rates = rates if isinstance(rates, dict) else {}
    entry = rates.get(key(spec))
    entry = entry if isinstance(entry, dict) else {}
    for name, value in found.items():
        count = round((tokens or {}).get(name, 0))
        before = entry.get(name)
        if isinstance(before, dict) and int(before.get("tokens") or 0) > KEEP_FACTOR * count:
            continue
        entry[name] = {"value": round(value, 3), "tokens": count, "run": run_id, "t": round(t)}
        if name in of_steps:
            entry[name]["of_steps"] = True
    rundir.write_json(workspace / FILE, {"v": 1, "rates": rates | {key(spec): entry}})
