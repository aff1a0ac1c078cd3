"""What is known of a run, gathered from its files and the process table every time it is asked for; never stored."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import derive, holds, identity
from eagle3.runner.derive import LIVE
from eagle3.runner.rundir import read_object
from eagle3.runner.services import turns

__all__ = [
    "LIVE",
    "attempt_dir",
    "attempts",
    "control_request",
    "facts",
    "recorded_processes",
    "stop_request",
    "summary",
    "tail_rows",
    "told_end",
]

_TAIL_BYTES = 65536


def attempts(run_dir: Path) -> List[int]:
    """The attempts that were claimed, in order."""
    try:
        return sorted(int(entry.name) for entry in (run_dir / "attempts").iterdir() if entry.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def attempt_dir(run_dir: Path, attempt: int) -> Path:
    """``attempts/<n>``."""
    return run_dir / "attempts" / str(attempt)


def stop_request(run_dir: Path, attempt: int) -> Dict[str, Any]:
    """``stop.json`` where it was meant for ``attempt``, else empty: an old one does not stop a resumed run."""
    found = read_object(run_dir / "stop.json")
    return found if found.get("attempt") == attempt else {}


def control_request(run_dir: Path, attempt: int) -> Dict[str, Any]:
    """``control.json`` where it was meant for ``attempt``, else empty: an old pause does not hold a resumed run."""
    found = read_object(run_dir / "control.json")
    return found if found.get("attempt") == attempt else {}


def facts(run_dir: Path, now: float) -> Tuple[int, derive.Facts]:
    """The last attempt's number (0: none was claimed) and what is known of it at this moment."""
    numbers = attempts(run_dir)
    attempt = numbers[-1] if numbers else 0
    folder = attempt_dir(run_dir, attempt)
    ended = read_object(folder / "exit.json")
    started, starting = read_object(folder / "started.json"), read_object(folder / "starting.json")
    worker_lives, supervisor_lives = identity.alive(started), identity.alive(started.get("supervisor") or {})
    if not ended and started and not worker_lives and not supervisor_lives:
        ended = read_object(folder / "exit.json")  # it may have come since the first look
    starter = starting.get("supervisor") or starting.get("launcher") or {}
    progress = read_object(run_dir / "progress.json")
    row_t, gap_s = (None, None) if ended else _rows(run_dir, attempt, str(progress.get("stage", "")))
    beat_t = read_object(folder / "heartbeat.json").get("t")
    here = identity.of(os.getpid())
    return attempt, derive.Facts(
        now=now,
        ended=ended,
        started=started,
        starting=starting,
        stop=stop_request(run_dir, attempt),
        pause=holds.written(holds.of(control_request(run_dir, attempt))) or {},
        progress=progress if progress.get("attempt") == attempt else {},
        row_t=row_t,
        gap_s=gap_s,
        stall_s=_stall_s(run_dir),
        same_world=identity.same_world(started),
        worker_lives=worker_lives,
        supervisor_lives=supervisor_lives,
        starter_lives=identity.alive(starter),
        starter_here=not starting or identity.same_world(starter),
        claimed_t=_changed_t(folder),
        host=here["host"],
        boot_id=here["boot_id"],
        beat_t=float(beat_t) if isinstance(beat_t, (int, float)) else None,
        left=() if ended else tuple(pid for pid, start in recorded_processes(folder) if identity.is_running(pid, start)),
        reason=_reason(run_dir, attempt) if ended else "",
        yielding="" if started else ", ".join(s["name"] for s in _services(run_dir) if s["state"] == "stopped"),
    )


def _stall_s(run_dir: Path) -> float:
    """How long the run may be silent, as its spec says; an older run's launch does not."""
    after_s = (read_object(run_dir / "launch.json").get("stall") or {}).get("after_s")
    return float(after_s) if isinstance(after_s, (int, float)) and after_s > 0 else derive.QUIET_AT_LEAST_S


def told_end(run_dir: Path, attempt: int) -> Tuple[str, str]:
    """State and sentence of an attempt that has ended, the last or an earlier one."""
    ended = read_object(attempt_dir(run_dir, attempt) / "exit.json")
    stop = stop_request(run_dir, attempt)
    return derive.state(derive.Facts(now=0.0, ended=ended, stop=stop, reason=_reason(run_dir, attempt)))


def summary(run_dir: Path, now: float) -> Dict[str, Any]:
    """The run in the shape of ``core.records.RunSummary``. ``now`` is Unix seconds of this machine's clock."""
    launch = read_object(run_dir / "launch.json")
    attempt, known = facts(run_dir, now)
    state, text = derive.state(known)
    started, ended = known.started, known.ended
    paused = [] if ended else holds.of({"pause": known.pause})
    progress = read_object(run_dir / "progress.json")
    return {
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        "state": state,
        "state_text": text,
        "attempt": attempt,
        "label": {str(k): str(v) for k, v in (launch.get("label") or {}).items()},
        "actor": started.get("actor") or known.starting.get("actor") or launch.get("actor") or "",
        "created_at": launch.get("created_at"),
        "started_at": started.get("t"),
        "ended_at": ended.get("t"),
        "exit_code": ended.get("code"),
        "exit_signal": ended.get("signal"),
        "stop_mode": known.stop.get("mode"),
        "stop_by": known.stop.get("by"),
        "paused_by": paused[0]["by"] if paused else None,
        "paused_at": paused[0]["t"] if paused else None,
        "paused": paused,
        "last_row_age_s": max(0.0, now - known.row_t) if known.row_t is not None else None,
        # Of an attempt that has just begun nothing is known yet; how far an earlier one came is not where it is.
        "progress": (progress if ended else known.progress) or None,
        "stages": _stages(run_dir),
        "services": _services(run_dir),
        "now": now,
    }


def _changed_t(path: Path) -> Optional[float]:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _reason(run_dir: Path, attempt: int) -> str:
    """What the worker of ``attempt`` said before it failed, in its own sentence; empty where it said nothing."""
    for row in reversed(tail_rows(run_dir / "events.jsonl")):
        if row.get("attempt") == attempt and row.get("kind") == "failed":
            return str(row.get("text") or "")
    return ""


def recorded_processes(folder: Path) -> List[Tuple[int, int]]:
    """The processes that the last heartbeat saw, as (pid, start ticks); empty after a reboot."""
    beat = read_object(folder / "heartbeat.json")
    if beat.get("boot_id") != identity.boot_id():
        return []
    return [(p[0], p[1]) for p in beat.get("processes") or [] if isinstance(p, list) and len(p) == 2]


def _rows(run_dir: Path, attempt: int, stage: str) -> Tuple[Optional[float], Optional[float]]:
    """Time of the attempt's last metric row, and the median gap in seconds between the rows of ``stage``."""
    times: List[float] = []
    last: Optional[float] = None
    for row in tail_rows(run_dir / "metrics.jsonl"):
        if row.get("attempt") == attempt and isinstance(row.get("t"), (int, float)):
            last = max(last or 0.0, float(row["t"]))
            if row.get("stage") == stage:
                times.append(float(row["t"]))
    gaps = [later - times[i] for i, later in enumerate(times[1:])]
    return last, statistics.median(gaps) if gaps else None


def tail_rows(path: Path) -> List[Dict[str, Any]]:
    """The last rows of a JSONL file; none where it is missing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    rows: List[Dict[str, Any]] = []
    for line in lines[1 if size > _TAIL_BYTES else 0 : -1]:
        try:
            row = json.loads(line.decode("utf-8"))
        except ValueError:
            continue  # a line torn by a full disk
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _services(run_dir: Path) -> List[Dict[str, Any]]:
    """What the last attempt that stopped services has stopped, and what became of it, for a person to read."""
    for attempt in reversed(attempts(run_dir)):
        folder = attempt_dir(run_dir, attempt)
        yielded = read_object(folder / "yielded.json")
        if yielded:
            restored = read_object(folder / "restored.json")
            done = restored.get("services") or [] if restored.get("turn") == yielded.get("turn") else []
            outcomes = {str(outcome.get("name")): outcome for outcome in done}
            host = str(yielded.get("host") or "")
            away = f"it was stopped on {host}, and only there somebody starts it again" if host != turns.host() else ""
            return [
                {
                    "name": str(entry.get("name")),
                    "state": str(outcomes.get(str(entry.get("name")), {}).get("outcome") or "stopped"),
                    "text": str(outcomes.get(str(entry.get("name")), {"text": away}).get("text") or ""),
                    "consented_by": str(entry.get("consented_by") or ""),
                    "consent": str(entry.get("consent") or ""),
                    "attempt": attempt,
                    "t": restored.get("t") if done else yielded.get("t"),
                }
                for entry in yielded.get("services") or []
            ]
    return []


def _stages(run_dir: Path) -> Dict[str, float]:
    found: List[Tuple[float, str, float]] = []
    try:
        names = [f.name for f in (run_dir / "stages").iterdir() if f.name.endswith(".json") and f.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for name in names:
        record = read_object(run_dir / "stages" / name)
        found.append((float(record.get("t") or 0.0), name[: -len(".json")], float(record.get("seconds") or 0.0)))
    return {stage: seconds for _, stage, seconds in sorted(found)}
