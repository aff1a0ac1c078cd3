"""What has happened in a workspace since somebody last looked: the verb ``since``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List

from eagle3.runner import rundir, state
from eagle3.runner.errors import complain
from eagle3.runner.rundir import PathLike, read_object

MAX_HAPPENINGS = 300
MAX_TEXT = 400
_COVERED = frozenset({"attempt_started", "attempt_ended", "stop_asked", "service_stopping", "service_restored", "service_failed"})
"""Events about which a file of the run says the same, on a full disk too."""

Happening = Dict[str, Any]


def since(workspace: PathLike, t: float, limit: int = MAX_HAPPENINGS) -> Dict[str, Any]:
    """``{"t","now","happenings","left_off","runs"}``: what happened after ``t`` (Unix seconds) in all runs, the newest last.

    Of more than ``limit`` the newest are kept and ``left_off`` counts the others. ``runs`` tells how each run concerned
    stands now, which no event tells where a supervisor was killed or the machine restarted. Raises PermissionError.
    """
    now = time.time()
    happenings: List[Happening] = []
    runs = []
    for run_dir in rundir.runs(workspace):
        try:
            found = [h for h in _of_run(run_dir) if isinstance(h["t"], (int, float)) and h["t"] > t]
            summary = state.summary(run_dir, now)
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            complain(f"what happened to {run_dir.name} cannot be understood: {error}")
            continue  # one run that a foreign hand or a newer runner wrote must not hide all the others
        if found or summary["state"] in state.LIVE:
            keys = ("run_id", "state", "state_text", "attempt", "actor", "stop_by", "stop_mode", "ended_at")
            runs.append({**{key: summary[key] for key in keys}, "happenings": len(found)})
        happenings += found
    happenings.sort(key=lambda h: float(h["t"]))
    kept = happenings[-max(1, min(limit, MAX_HAPPENINGS)) :]
    return {"t": t, "now": now, "happenings": kept, "left_off": len(happenings) - len(kept), "runs": runs}


def _of_run(run_dir: Path) -> List[Happening]:
    launch, stop = read_object(run_dir / "launch.json"), read_object(run_dir / "stop.json")

    def tell(t: Any, kind: str, text: Any, actor: Any, level: str = "info") -> None:
        found.append(
            {
                "t": t, "run_id": run_dir.name, "kind": kind, "level": level, "actor": str(actor or ""),
                "text": str(text or "")[:MAX_TEXT],
            }
        )  # fmt: skip

    found: List[Happening] = []
    tell(launch.get("created_at"), "created", "launched", launch.get("actor"))
    if stop:
        how = "now" if stop.get("mode") == "now" else "after its next checkpoint"
        tell(stop.get("t"), "stop_asked", f"asked to stop {how}", stop.get("by"), "warn")
    for attempt in state.attempts(run_dir):
        folder = state.attempt_dir(run_dir, attempt)
        started, ended = read_object(folder / "started.json"), read_object(folder / "exit.json")
        if started:
            verb = "started" if attempt == 1 else "resumed"
            tell(started.get("t"), "attempt_started", f"{verb} as attempt {attempt}", started.get("actor"))
        if ended:
            word, text = state.told_end(run_dir, attempt)
            level = "error" if word == "failed" else "info"
            tell(ended.get("t"), "attempt_ended", f"attempt {attempt}: {text}", ended.get("by"), level)
        yielded, restored = read_object(folder / "yielded.json"), read_object(folder / "restored.json")
        for entry in yielded.get("services") or []:
            text = f"{entry.get('name')} was stopped for the run ({entry.get('consent')})"
            tell(yielded.get("t"), "service_stopping", text, entry.get("consented_by"), "warn")
        for entry in restored.get("services") or []:
            failed = entry.get("outcome") == "failed"
            text = f"{entry.get('name')}: {entry.get('outcome')}{'; ' + str(entry.get('text')) if failed else ''}"
            kind = "service_failed" if failed else "service_restored"
            tell(restored.get("t"), kind, text, restored.get("actor"), "error" if failed else "info")
    for row in state.tail_rows(run_dir / "events.jsonl"):
        if row.get("kind") not in _COVERED:
            level = str(row.get("level") or "info")
            tell(row.get("t"), str(row.get("kind") or ""), row.get("text"), row.get("actor"), level)
    return found
