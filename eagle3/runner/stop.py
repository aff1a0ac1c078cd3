"""Stopping a run: by its supervisor, or without one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.runner import adopt, detach, events, identity, proctable, rundir, state
from eagle3.runner.ending import ended_record
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.services import restoring
from eagle3.runner.supervise import KILL_GRACE_S
from eagle3.runner.watch import settle

MODES = ("now", "after-checkpoint")


def stop(run_dir: Path, mode: str = "now", actor: str = "", grace_s: Optional[float] = None) -> Dict[str, Any]:
    """Ask the last attempt of a run to end; answers at once with ``{"run_id","attempt","mode","already","state"}``.

    The request is ``stop.json``. "now": the supervisor sends TERM to the worker, after ``grace_s`` seconds TERM to all
    its processes, then KILL. "after-checkpoint": the worker ends itself. Where the supervisor is dead, a detached
    process of ours does its work, and it does so for what an ended run left alive. ``already`` is true where nothing
    was left to stop. A "now" is never softened again.

    Raises VerbError: usage (mode), not_found, disk and permission (the request cannot be written).
    """
    if mode not in MODES:
        raise VerbError("usage", f"{mode!r} is no way to stop a run.", f"Use {' or '.join(MODES)}.")
    if not (run_dir / "launch.json").exists():
        raise VerbError(
            "not_found",
            f"There is no run {run_dir.name} in {run_dir.parent.parent}.",
            "`eagle3-tui runs` or `eagle3 ls` lists them.",
        )
    summary = state.summary(run_dir, time.time())
    attempt = int(summary["attempt"])
    answer = {"run_id": run_dir.name, "attempt": attempt, "mode": mode, "already": False, "state": summary["state"]}
    ended = summary["state"] not in state.LIVE
    if ended and not (mode == "now" and adopt.leftovers(run_dir, attempt)):
        return {**answer, "already": True}
    before = state.stop_request(run_dir, attempt)
    if before.get("mode") == "now":
        answer["mode"] = mode = "now"
        actor = str(before.get("by") or actor)  # who stopped it is who said so first
    started = rundir.read_object(state.attempt_dir(run_dir, attempt) / "started.json")
    supervisor = started.get("supervisor") or {}
    alone = bool(mode == "now" and started and identity.same_world(started) and not identity.alive(supervisor))
    if alone and run_dir.stat().st_uid != os.geteuid():
        text = f"The supervisor of {run_dir.name} is dead, and its processes belong to {run_dir.owner()}."
        raise VerbError("permission", text, f"Ask {run_dir.owner()} to stop it.")
    request = {"v": 1, "attempt": attempt, "mode": mode, "by": actor, "t": time.time()}
    if grace_s is not None:
        request["grace_s"] = float(grace_s)
    try:
        rundir.write_json(run_dir / "stop.json", request)
    except OSError as error:
        # A full disk must not keep a run alive: the supervisor takes TERM for a stop "now".
        if mode != "now" or not started:
            raise from_os_error(error, f"asking the run {run_dir.name} to stop") from error
        if identity.alive(supervisor):
            proctable.send((supervisor["pid"], supervisor["start_ticks"]), signal.SIGTERM)
    if before.get("mode") != mode:
        how = "now" if mode == "now" else "after its next checkpoint"
        events.append(run_dir, attempt, "stop_asked", f"asked to stop {how}", actor=actor or events.SUPERVISOR)
    if alone:
        _spawn_ender(run_dir, attempt, grace_s)
    return answer


def _spawn_ender(run_dir: Path, attempt: int, grace_s: Optional[float]) -> None:
    arguments = ["end", str(run_dir), "--attempt", str(attempt)]
    if grace_s is not None:
        arguments += ["--grace-s", str(float(grace_s))]
    log = os.open(state.attempt_dir(run_dir, attempt) / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        detach.spawn(arguments, log=log, cwd=run_dir, env=detach.child_environment({}))
    except OSError as error:
        raise from_os_error(error, f"stopping the run {run_dir.name}") from error
    finally:
        os.close(log)


def end_unsupervised(run_dir: Path, attempt: int, grace_s: Optional[float] = None) -> None:
    """What the dead supervisor would have done: TERM to the worker, grace, TERM to the rest, KILL; then exit.json.

    The exit code stays unknown: only a parent learns it.
    """
    folder = state.attempt_dir(run_dir, attempt)
    started = rundir.read_object(folder / "started.json")
    if grace_s is None:
        grace_s = float(rundir.read_object(run_dir / "launch.json").get("grace_s") or 30)
    leader = (int(started.get("pid") or 0), int(started.get("start_ticks") or 0))
    seen = {leader, *state.recorded_processes(folder)}

    def everything() -> List[proctable.Process]:
        table = proctable.snapshot()
        found = {p for p in seen if identity.is_running(*p)}
        found.update((p.pid, p.start_ticks) for p in proctable.descendants([pid for pid, _ in found], table))
        found.update((p.pid, p.start_ticks) for p in proctable.marked(str(run_dir), attempt, table))
        seen.update(found)
        return sorted(found)

    everything()
    proctable.send(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while identity.is_running(*leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = proctable.end_all(everything, grace_s=min(KILL_GRACE_S, grace_s))
    request = state.stop_request(run_dir, attempt)
    if not (folder / "exit.json").exists():
        survivors = [{"pid": pid, "name": proctable.name(pid)} for pid, _ in left]
        text = "stopped without its supervisor; how the worker ended is not known"
        text += f"; still alive: {', '.join(str(s['pid']) for s in survivors)}" if survivors else ""
        events.append(run_dir, attempt, "attempt_ended", text, actor=str(request.get("by") or events.SUPERVISOR))
        record = ended_record(attempt, None, {**request, "mode": "now"}, survivors=survivors, error="", now=time.time())
        rundir.write_json(folder / "exit.json", record)
    restoring.restore(run_dir, str(request.get("by") or events.SUPERVISOR))
    settle(run_dir, attempt, {})
