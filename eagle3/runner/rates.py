"""The rates that the runs of a workspace have measured, as a probe tells them, so that an estimate made elsewhere agrees."""

from __future__ import annotations

import json
import math
from typing import Any, Dict

from eagle3.runner import rundir
from eagle3.runner.rundir import PathLike

FILE = "rates.json"
MOST_BYTES = 256 << 10
"""A file beyond this is not ours, and is not read."""
MOST_KEYS = 64
"""Machine and target pairs that are told, those measured last first."""


def measured(workspace: PathLike) -> Dict[str, Dict[str, Any]]:
    """ "MACHINE/TARGET" → rate → ``{"value","tokens","run","t"}``, and ``"of_steps": true`` where a training's rate is of its
    steps alone; empty where nothing was measured or the file is spoilt."""
    path = rundir.workspace_path(workspace) / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        table = json.loads(content.decode("utf-8")) if len(content) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    found = table.get("rates") if isinstance(table, dict) else None
    told = {str(key): _entry(rates) for key, rates in (found if isinstance(found, dict) else {}).items()}
    newest = sorted(told, key=lambda key: -max((rate["t"] for rate in told[key].values()), default=0.0))
    return {key: told[key] for key in newest[:MOST_KEYS]}


def _entry(rates: Any) -> Dict[str, Any]:
    entry = {}
    for name, rate in (rates if isinstance(rates, dict) else {}).items():
        if isinstance(rate, dict) and _number(rate.get("value")) > 0:
            about = {"tokens": _number(rate.get("tokens")), "run": str(rate.get("run") or "")[:64], "t": _number(rate.get("t"))}
            alone = {"of_steps": True} if rate.get("of_steps") is True else {}
            entry[str(name)[:64]] = {"value": rate["value"], **about, **alone}
    return entry


def _number(value: Any) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else 0.0
