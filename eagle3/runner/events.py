"""``events.jsonl``: what is worth telling a person about a run, and who did it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from eagle3.runner import rundir
from eagle3.runner.errors import complain
from eagle3.runner.redact import redact

SUPERVISOR = "supervisor"
"""The actor of what the runner does by itself; what a person asked for bears the person's name."""


def guard_record(
    name: str, value: float, threshold: float, counts: Mapping[str, float], response: str, action: str
) -> Dict[str, Any]:
    """What the event of every guard carries under ``guard``, whoever noticed; its kind is ``guard-<name>``. ``counts``: what the
    value rests on. ``response``: warn, pause or stop. ``action``: what the operator may do, in a sentence."""
    numbers: Dict[str, Any] = {"value": value, "threshold": threshold, "counts": dict(counts)}
    return {"name": name, **numbers, "response": response, "action": action}


def append(
    run_dir: Path,
    attempt: int,
    kind: str,
    text: str,
    *,
    level: str = "info",
    actor: str = SUPERVISOR,
    detail: str = "",
    guard: Optional[Mapping[str, Any]] = None,
) -> None:
    """Append an event, with a guard's record where it is one. Where it cannot be written (a full disk) it goes to the log: that
    must not end its writer."""
    row: Dict[str, Any] = {
        "v": 1,
        "attempt": attempt,
        "t": time.time(),
        "kind": kind,
        "level": level,
        "actor": actor,
        "text": redact(text),
    }
    if detail:
        row["detail"] = redact(detail)
    if guard is not None:
        row["guard"] = dict(guard)
    try:
        rundir.append_line(run_dir / "events.jsonl", row)
    except OSError as error:
        complain(f"{text} (event not written: {error})")
