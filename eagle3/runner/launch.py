"""Starting a run exactly once, however often and from however many places it is asked for."""

from __future__ import annotations

import os
import select
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Optional

from eagle3.runner import adopt, detach, events, identity, rundir, state
from eagle3.runner.claims import hand_over, marker
from eagle3.runner.conditions import log_tail
from eagle3.runner.ending import ended_record
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.hooks import check_hooks
from eagle3.runner.preflight import check_launch, check_secrets, check_secrets_given, make_run_dir
from eagle3.runner.redact import redact
from eagle3.runner.rundir import PathLike
from eagle3.runner.services import records, restoring
from eagle3.runner.services.plan import require_consent

START_WAIT_S = 30.0
"""Seconds that a caller waits for the supervisor's word before it is told to ask again."""
SETTLE_S = 2.0
"""Seconds that a claim stays untouched although its claimer is gone: time for what it has spawned to show itself."""


def launch(
    workspace: PathLike,
    run_id: str,
    spec_toml: str,
    launch: Dict[str, Any],
    report: Optional[Dict[str, Any]] = None,
    actor: str = "",
    resume: bool = False,
    secret_env: Optional[Dict[str, str]] = None,
    attempt: Optional[int] = None,
) -> Dict[str, Any]:
    """Start the run, or find it started; answers when ``started.json`` of the attempt is on disk. Where what must yield to it
    takes longer than `START_WAIT_S` to stop, the answer's state is "starting", ``started`` is empty, and it starts by itself.

    The run id is the idempotency key: a second call gives the first one's answer with ``already`` true. With ``resume``
    the next attempt is started if the last one has ended; a live one is the answer as it stands. ``attempt`` makes a
    resume repeatable: where that attempt exists, it is the answer. ``secret_env`` reaches the worker's environment only.

    Raises VerbError: usage (a bad argument, the id taken by another spec), disk, permission, not_found (resume of a
    run that is not there), failed (the worker could not be started), busy (no word yet; asking again is safe).
    """
    run_dir = rundir.run_path(workspace, run_id)
    secrets = {str(key): str(value) for key, value in (secret_env or {}).items()}
    check_secrets(secrets)
    plan = None if resume and not launch else {**check_launch(launch), "secret_env": sorted(secrets)}
    if plan is not None:
        check_hooks(plan, secrets)
    made = False
    if not (run_dir / "launch.json").exists():
        if resume:
            raise VerbError(
                "not_found",
                f"There is no run {run_id} in {run_dir.parent.parent} to resume.",
                "`eagle3-tui runs` or `eagle3 ls` lists them.",
            )
        assert plan is not None
        _make_way(run_dir, plan, actor)
        made = make_run_dir(run_dir, spec_toml, {**plan, "v": 1, "actor": actor, "created_at": time.time()}, report)
    if not made and not resume:
        _same_spec(run_dir, spec_toml)
    number = _attempt(run_dir, resume, attempt)
    if resume and not state.attempt_dir(run_dir, number).exists():
        _make_way(run_dir, plan or rundir.read_object(run_dir / "launch.json"), actor)
    own_plan = {**plan, "v": 1, "actor": actor} if plan and number > 1 else None
    try:
        return _start_or_join(run_dir, number, actor, secrets, own_plan, made=made)
    except OSError as error:
        raise from_os_error(error, f"starting the run {run_id}") from error


def _make_way(run_dir: Path, plan: Dict[str, Any], actor: str) -> None:
    """Before a new attempt: no other run's services are about to come back, and nothing that the plan needs is in use
    without consent."""
    if plan.get("services") or plan.get("device") == "cuda":
        restoring.settle([other for other in rundir.runs(run_dir.parent.parent) if other != run_dir], actor)
        require_consent(plan)


def _same_spec(run_dir: Path, spec_toml: str) -> None:
    try:
        same = (run_dir / "spec.toml").read_text(encoding="utf-8") == spec_toml
    except OSError as error:
        raise from_os_error(error, f"reading the spec of {run_dir.name}") from error
    if not same:
        raise VerbError("usage", f"The run {run_dir.name} exists already, with another spec.", "Choose another run id.")


def _attempt(run_dir: Path, resume: bool, wanted: Optional[int]) -> int:
    numbers = state.attempts(run_dir)
    if not numbers:
        return 1
    if not resume or (wanted is not None and wanted in numbers):
        return wanted if resume and wanted is not None else numbers[-1]
    last = state.summary(run_dir, time.time())  # its number too: another resume may have claimed one meanwhile
    if last["state"] in state.LIVE:
        return int(last["attempt"])
    left = adopt.leftovers(run_dir, int(last["attempt"]))
    if left:  # an engine that outlived its run still holds memory and ports
        pids = ", ".join(str(pid) for pid, _ in left[:8])
        raise VerbError("busy", f"Processes of the run {run_dir.name} are still alive: {pids}.", "Stop the run, then resume it.")
    return int(last["attempt"]) + 1


def _start_or_join(
    run_dir: Path, attempt: int, actor: str, secrets: Dict[str, str], own_plan: Optional[Dict[str, Any]], *, made: bool
) -> Dict[str, Any]:
    folder = state.attempt_dir(run_dir, attempt)
    mode = run_dir.stat().st_mode & 0o2770
    if not folder.exists():
        check_secrets_given(run_dir.name, rundir.read_object(run_dir / "launch.json"), secrets)
    if rundir.claim(folder, mode):
        return _start(run_dir, attempt, actor, secrets, own_plan, made=made)
    deadline = time.monotonic() + START_WAIT_S
    while time.monotonic() < deadline:
        if (folder / "started.json").exists() or (folder / "exit.json").exists():
            return _answer(run_dir, attempt, already=True)
        starting = rundir.read_object(folder / "starting.json")
        retries = sorted(folder.glob("retry-*"), key=lambda path: int(path.name[6:]))
        claimed_at = (retries[-1] if retries else folder).stat().st_mtime
        held = identity.alive(starting.get("supervisor") or starting.get("launcher") or {})
        # The claimer is gone. What it had spawned may still be on its way, so look twice before starting again.
        gone = not held and time.time() - claimed_at > SETTLE_S and not adopt.find_or_adopt(run_dir, attempt)
        if gone:
            check_secrets_given(run_dir.name, rundir.read_object(run_dir / "launch.json"), secrets)
        if gone and rundir.claim(folder / f"retry-{len(retries) + 1}", mode):
            return _start(run_dir, attempt, actor, secrets, own_plan, made=made)
        time.sleep(0.05)
    if _waits_for_services(run_dir, attempt):
        return _answer(run_dir, attempt, already=True)
    raise VerbError(
        "busy",
        f"Another launch of {run_dir.name} has not come to an end in {START_WAIT_S:.0f} s.",
        "Ask again: it is safe to repeat.",
    )


def _start(
    run_dir: Path, attempt: int, actor: str, secrets: Dict[str, str], own_plan: Optional[Dict[str, Any]], *, made: bool
) -> Dict[str, Any]:
    folder = state.attempt_dir(run_dir, attempt)
    deadline = time.monotonic() + START_WAIT_S
    try:
        me = identity.of(os.getpid())
        rundir.write_json(folder / "starting.json", {"v": 1, "t": time.time(), "actor": actor, "launcher": me})
        if own_plan is not None:
            rundir.write_json(folder / "launch.json", own_plan)
        ack = _spawn_supervisor(run_dir, attempt, actor, secrets)
    except OSError as error:
        _remove(run_dir, attempt, made=made)
        raise from_os_error(error, f"starting the run {run_dir.name}") from error
    try:
        ready, _, _ = select.select([ack], [], [], START_WAIT_S)
        silent = not ready
    finally:
        os.close(ack)
    while not (folder / "started.json").exists() and not (folder / "exit.json").exists():
        if silent and _waits_for_services(run_dir, attempt):
            break
        if silent:
            text = f"The supervisor of {run_dir.name} has said nothing for {START_WAIT_S:.0f} s."
            raise VerbError("busy", text, "Ask again: it is safe to repeat.")
        # It has died. A worker that it had just forked bears the supervisor's name until its exec is through, and for
        # a moment of that none at all: look until it is one, and twice before there is none.
        lives = adopt.find_or_adopt(run_dir, attempt)
        time.sleep(0.05)
        if not lives and not adopt.find_or_adopt(run_dir, attempt):
            return _dead_at_start(run_dir, attempt, made=made)
        silent = time.monotonic() > deadline
    return _answer(run_dir, attempt, already=False)


def _waits_for_services(run_dir: Path, attempt: int) -> bool:
    """Whether the attempt's supervisor lives and has something stopped for it: then the run starts by itself."""
    starting = rundir.read_object(state.attempt_dir(run_dir, attempt) / "starting.json")
    return identity.alive(starting.get("supervisor") or {}) and bool(records.outstanding(run_dir))


def _dead_at_start(run_dir: Path, attempt: int, *, made: bool) -> Dict[str, Any]:
    folder = state.attempt_dir(run_dir, attempt)
    if not (folder / "started.json").exists():
        record = ended_record(attempt, None, {}, survivors=[], error="The supervisor could not start.", now=time.time())
        try:
            rundir.write_json(folder / "exit.json", record)
        except OSError as error:  # the disk has filled up under it
            restoring.restore(run_dir, events.SUPERVISOR)
            _remove(run_dir, attempt, made=made)
            raise from_os_error(error, f"starting the run {run_dir.name}") from error
        restoring.spawn_due([run_dir], events.SUPERVISOR)
    return _answer(run_dir, attempt, already=False)


def _remove(run_dir: Path, attempt: int, *, made: bool) -> None:
    """Nothing of it runs, so nothing half-made is left: the next launch finds the id free, or the run as it was. ``made``: this
    very launch has made the run; a fork or an import that was there before holds what nobody makes again."""
    shutil.rmtree(run_dir if made else state.attempt_dir(run_dir, attempt), ignore_errors=True)


def _spawn_supervisor(run_dir: Path, attempt: int, actor: str, secrets: Dict[str, str]) -> int:
    """Start it; gives the descriptor that becomes readable when it has put the outcome on disk, or has died."""
    folder = state.attempt_dir(run_dir, attempt)
    log = os.open(folder / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    ack_read, ack_write = os.pipe()
    secret_read = hand_over(secrets)
    try:
        os.fchmod(log, run_dir.stat().st_mode & 0o660)
        arguments = ["supervise", str(run_dir), "--attempt", str(attempt), "--detach", f"--actor={actor}"]
        arguments += ["--ack-fd", str(ack_write), "--secret-fd", str(secret_read)]
        # A secret of the caller's own environment (a shell's) goes to the worker like the others, through the pipe.
        inherited = detach.child_environment(marker(run_dir, attempt))
        env = {name: value for name, value in inherited.items() if name not in secrets}
        detach.spawn(arguments, log=log, cwd=run_dir, env=env, pass_fds=(ack_write, secret_read))
    except OSError:
        os.close(ack_read)
        raise
    finally:
        for descriptor in (ack_write, secret_read, log):
            os.close(descriptor)
    return ack_read


def _answer(run_dir: Path, attempt: int, *, already: bool) -> Dict[str, Any]:
    folder = state.attempt_dir(run_dir, attempt)
    started, ended = rundir.read_object(folder / "started.json"), rundir.read_object(folder / "exit.json")
    if not started and (ended or not _waits_for_services(run_dir, attempt)):
        why = str(ended.get("error") or "The attempt ended before it started.")
        raise VerbError("failed", why, "Correct it, then resume the run.", _log_tail(folder))
    summary = state.summary(run_dir, time.time())
    return {
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        "attempt": attempt,
        "already": already,
        "state": summary["state"],
        "started": started,
    }


def _log_tail(folder: Path) -> str:
    return redact(log_tail(folder / "run.log", 2000))
