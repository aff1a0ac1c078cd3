"""``events.jsonl``: what is worth telling a person about a run, and who did it."""

from __future__ import annotations

import time
from pathlib import Path

from eagle3.runner import rundir
from eagle3.runner.errors import complain
from eagle3.runner.redact import redact

SUPERVISOR = "supervisor"
"""The actor of what the runner does by itself; what a person asked for bears the person's name."""


def append(
    run_dir: Path, attempt: int, kind: str, text: str, *, level: str = "info", actor: str = SUPERVISOR, detail: str = ""
) -> None:
    """Append an event. Where it cannot be written (a full disk) it goes to the log: that must not end its writer."""
    row = {"v": 1, "attempt": attempt, "t": time.time(), "kind": kind, "level": level, "actor": actor, "text": redact(text)}
    if detail:
        row["detail"] = redact(detail)
    try:
        rundir.append_line(run_dir / "events.jsonl", row)
    except OSError as error:
        complain(f"{text} (event not written: {error})")
