"""A run's state, derived from its files and the process table every time it is asked for; never stored."""

from __future__ import annotations

import json
import os
import signal
import statistics
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import identity
from eagle3.runner.rundir import read_object

EXIT_STOPPED = 75
"""The worker's exit code for "I was asked to stop and have saved everything"."""

LIVE = frozenset({"starting", "running", "unsupervised", "stalled"})
QUIET_AT_LEAST_S = 300.0
QUIET_GAPS = 10.0
START_DEADLINE_S = 60.0
"""An attempt without a living starter that has not started after so long will not start any more."""
FOREIGN_BEAT_S = 60.0
"""Where the processes cannot be looked up (another host on shared storage), a heartbeat younger than this is life."""

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


def summary(run_dir: Path, now: float) -> Dict[str, Any]:
    """The run in the shape of ``core.records.RunSummary``. ``now`` is Unix seconds of this machine's clock."""
    launch = read_object(run_dir / "launch.json")
    numbers = attempts(run_dir)
    attempt = numbers[-1] if numbers else 0
    folder = attempt_dir(run_dir, attempt)
    starting, started = read_object(folder / "starting.json"), read_object(folder / "started.json")
    ended = read_object(folder / "exit.json")
    stop = stop_request(run_dir, attempt)
    pause = control_request(run_dir, attempt).get("pause") or {}
    progress = read_object(run_dir / "progress.json")
    row_t, gap_s = (None, None) if ended else _rows(run_dir, attempt, str(progress.get("stage", "")))
    if ended:
        state, text = _ended(run_dir, attempt, ended, stop)
    elif started:
        state, text = _started(run_dir, attempt, folder, started, stop, progress, row_t, gap_s, now)
    else:
        state, text = _not_started(folder, starting, now)
    return {
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        "state": state,
        "state_text": text,
        "attempt": attempt,
        "label": {str(k): str(v) for k, v in (launch.get("label") or {}).items()},
        "actor": started.get("actor") or starting.get("actor") or launch.get("actor") or "",
        "created_at": launch.get("created_at"),
        "started_at": started.get("t"),
        "ended_at": ended.get("t"),
        "exit_code": ended.get("code"),
        "exit_signal": ended.get("signal"),
        "stop_mode": stop.get("mode"),
        "stop_by": stop.get("by"),
        "paused_by": pause.get("by") if not ended else None,
        "paused_at": pause.get("t") if not ended else None,
        "last_row_age_s": max(0.0, now - row_t) if row_t is not None else None,
        "progress": progress or None,
        "stages": _stages(run_dir),
        "now": now,
    }


def _ended(run_dir: Path, attempt: int, ended: Dict[str, Any], stop: Dict[str, Any]) -> Tuple[str, str]:
    code, number = ended.get("code"), ended.get("signal")
    survivors = ended.get("survivors") or []
    tail = f"; still alive: {', '.join(str(s.get('pid')) for s in survivors)}" if survivors else ""
    by = f" by {stop['by']}" if stop.get("by") else ""
    if code == 0:
        return "finished", f"finished{tail}"
    if ended.get("stopped"):
        return "stopped", f"stopped{by}{tail}"
    if ended.get("error"):
        return "failed", f"{ended['error']}{tail}"
    if number:
        hint = " (often: out of memory)" if number == signal.SIGKILL else ""
        return "failed", f"ended by {_signal_name(number)}{hint}{tail}"
    return "failed", f"{_reason(run_dir, attempt) or f'failed with exit code {code}'}{tail}"


def _reason(run_dir: Path, attempt: int) -> str:
    """What the worker of ``attempt`` said before it failed, in its own sentence; empty where it said nothing."""
    for row in reversed(_tail_rows(run_dir / "events.jsonl")):
        if row.get("attempt") == attempt and row.get("kind") == "failed":
            return str(row.get("text") or "")
    return ""


def _started(
    run_dir: Path,
    attempt: int,
    folder: Path,
    started: Dict[str, Any],
    stop: Dict[str, Any],
    progress: Dict[str, Any],
    row_t: Optional[float],
    gap_s: Optional[float],
    now: float,
) -> Tuple[str, str]:
    supervisor = started.get("supervisor") or {}
    if not identity.same_world(started):
        return _elsewhere(folder, started, now)
    worker_lives, supervisor_lives = identity.alive(started), identity.alive(supervisor)
    if not worker_lives and not supervisor_lives:
        ended = read_object(folder / "exit.json")  # it may have come since the first look
        if ended:
            return _ended(run_dir, attempt, ended, stop)
        left = [p for p in recorded_processes(folder) if identity.is_running(*p)]
        if left:
            pids = ", ".join(str(pid) for pid, _ in left)
            return "unknown", f"ended, exit unknown; processes of it are still alive ({pids}): stop the run to end them"
        return "unknown", "ended, exit unknown: its supervisor was killed; resume it to go on"
    if not supervisor_lives:
        return "unsupervised", "running, unsupervised: its supervisor was killed; how it ends will not be known"
    if not worker_lives:
        return "running", "ending: the worker is gone, its last processes are being ended"
    if stop:
        return "running", "stopping now" if stop.get("mode") == "now" else "stopping after the next checkpoint"
    own_progress = progress if progress.get("attempt") == attempt else {}
    quiet_until = own_progress.get("quiet_until") or 0.0
    pause = control_request(run_dir, int(started.get("attempt") or 0)).get("pause") or {}
    if pause:
        held = str(own_progress.get("reason") or "").startswith("Paused")
        return "running", str(own_progress["reason"]) if held else "pausing after the work under way"
    signs = [t for t in (started.get("t"), own_progress.get("t"), row_t) if isinstance(t, (int, float))]
    silent_s = now - max(signs) if signs else 0.0
    allowed_s = max(QUIET_AT_LEAST_S, QUIET_GAPS * (gap_s or 0.0))
    if now > quiet_until and silent_s > allowed_s:
        return "stalled", f"stalled: nothing heard for {silent_s / 60:.0f} min; look at the log, stop it if nothing moves"
    return "running", str(own_progress.get("reason") or "running") if now <= quiet_until else "running"


def _elsewhere(folder: Path, started: Dict[str, Any], now: float) -> Tuple[str, str]:
    here = identity.of(1)
    host = started.get("host")
    if host and host != here["host"]:
        beat = read_object(folder / "heartbeat.json").get("t")
        if isinstance(beat, (int, float)) and now - beat < FOREIGN_BEAT_S:
            return "running", f"running on {host}, judged by its heartbeat"
    if started.get("boot_id") != here["boot_id"]:
        return "lost", "lost when the machine was restarted; resume it to go on"
    return "lost", "lost when the container was restarted; resume it to go on"


def _not_started(folder: Path, starting: Dict[str, Any], now: float) -> Tuple[str, str]:
    if identity.alive(starting.get("supervisor") or starting.get("launcher") or {}):
        return "starting", "starting"
    try:
        since = starting.get("t") or folder.stat().st_mtime
    except OSError:
        return "unknown", "never started; launch it again"
    here = not starting or identity.same_world(starting.get("launcher") or starting.get("supervisor") or {})
    if here and 0 <= now - since < START_DEADLINE_S:
        return "starting", "starting"
    return "unknown", "never started: its start was interrupted; launch it again"


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
    for row in _tail_rows(run_dir / "metrics.jsonl"):
        if row.get("attempt") == attempt and isinstance(row.get("t"), (int, float)):
            last = max(last or 0.0, float(row["t"]))
            if row.get("stage") == stage:
                times.append(float(row["t"]))
    gaps = [later - times[i] for i, later in enumerate(times[1:])]
    return last, statistics.median(gaps) if gaps else None


def _tail_rows(path: Path) -> List[Dict[str, Any]]:
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
