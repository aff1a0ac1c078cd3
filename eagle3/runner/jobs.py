"""Detached jobs of a workspace that are no runs: a deep check, the building of an environment.

``<workspace>/checks/<id>/`` holds ``job.json`` (what to do), ``facts.jsonl`` (what it says, a line each), ``log`` (its
stderr), ``started.json`` and ``exit.json``, the only proof of an end. A job survives the link that asked for it; at most one
of a kind runs in a workspace, and everything that it started bears its marker and ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from eagle3.runner import claims, detach, identity, proctable, rundir
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.rundir import PathLike

MARKER = "EAGLE3_CHECK_DIR"
KEEP = 5
"""Ended jobs that are kept; older ones are removed when a new one starts."""
START_WAIT_S = 15.0
CHUNK_BYTES = 256 * 1024
GRACE_S = 20.0
"""Seconds that a job has to put down what it holds (a vLLM server of its own) before it is killed."""

_POLL_S = 0.2


def job_path(workspace: PathLike, check_id: str) -> Path:
    """``<workspace>/checks/<check_id>``, which need not exist. Raises VerbError(usage) for an id that is not one."""
    if not isinstance(check_id, str) or not rundir.RUN_ID.fullmatch(check_id):
        raise VerbError("usage", f"{check_id!r} is not the id of a check.", "Use 1 to 64 characters out of a-z, 0-9 and '-'.")
    path = rundir.workspace_path(workspace) / "checks" / check_id
    if path.is_symlink():
        raise VerbError("usage", f"The check {check_id} is a link to another folder.", "Checks are real folders.")
    return path


def start(
    workspace: PathLike,
    check_id: str,
    kind: str,
    argv: List[str],
    *,
    files: Dict[str, Any],
    env: Optional[Dict[str, str]] = None,
    limit_s: float,
    actor: str = "",
    secrets: Optional[Dict[str, str]] = None,
) -> Dict[str, Any]:
    """Start ``argv`` detached; the answer ``{"check_id","already"}`` comes when it runs. ``files`` are put into its folder
    as JSON first; ``secrets`` reach the environment of ``argv`` only. The id makes it safe to repeat: where it is known, nothing
    is started.

    Raises VerbError: usage (the id), busy (another job of this kind runs), disk and permission, failed.
    """
    folder = job_path(workspace, check_id)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _one_at_a_time(folder.parent):
            if (folder / "job.json").exists():
                return {"check_id": check_id, "already": True}
            for other in _jobs(folder.parent):
                if rundir.read_object(other / "job.json").get("kind") == kind and is_live(other):
                    text = f"A {kind} runs in this workspace already: {other.name}."
                    raise VerbError("busy", text, "Wait for its end, read it, or stop it.", other.name)
            _prune(folder.parent)
            rundir.claim(folder)
            for name, content in files.items():
                rundir.write_json(folder / name, content)
            job = {
                "v": 1, "kind": kind, "argv": argv, "env": env or {}, "limit_s": limit_s, "actor": actor, "t": time.time(),
            }  # fmt: skip
            rundir.write_json(folder / "job.json", job)
            _spawn(folder, secrets or {})
    except OSError as error:
        raise from_os_error(error, f"starting the {kind} {check_id}") from error
    return {"check_id": check_id, "already": False}


def read(workspace: PathLike, check_id: str, offset: int = 0, log_offset: int = 0) -> Dict[str, Any]:
    """What a job has said since ``offset`` (bytes of ``facts.jsonl``): whole ``lines``, the new ``offset``, the log's text
    since ``log_offset``, ``done`` and its ``exit``. Raises VerbError(not_found)."""
    folder = _existing(workspace, check_id)
    live = is_live(folder)  # before the files: what is read after "ended" is all that there will be
    ended = rundir.read_object(folder / "exit.json")
    raw = _since(folder / "facts.jsonl", offset)
    whole = raw[: raw.rfind(b"\n") + 1]
    log = _since(folder / "log", log_offset)
    more = len(raw) >= CHUNK_BYTES
    if not live and not ended:
        ended = {"v": 1, "code": None, "error": "It ended without a word: its process is gone (killed, or a restart)."}
    return {
        "check_id": check_id,
        "kind": str(rundir.read_object(folder / "job.json").get("kind") or ""),
        "lines": whole.decode("utf-8", "replace").splitlines(),
        "offset": offset + len(whole),
        "log": log.decode("utf-8", "replace"),
        "log_offset": log_offset + len(log),
        "done": not live and not (more and whole),
        "exit": {} if live else ended,
    }


def stop(workspace: PathLike, check_id: str) -> Dict[str, Any]:
    """End a job and everything it started; ``{"check_id","already","survivors"}``, when nothing of it is left or a bounded
    wait is over. Raises VerbError(not_found)."""
    folder = _existing(workspace, check_id)
    if not is_live(folder):
        left = proctable.end_all(lambda: bearers(folder), grace_s=2.0)
        return {"check_id": check_id, "already": True, "survivors": [pid for pid, _ in left]}
    runner = rundir.read_object(folder / "started.json")
    proctable.send((int(runner.get("pid") or 0), int(runner.get("start_ticks") or 0)), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S + 8.0
    while (is_live(folder) or bearers(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"check_id": check_id, "already": False, "survivors": [pid for pid, _ in bearers(folder)]}


def is_live(folder: Path) -> bool:
    """Whether the job's watcher still runs; true for a moment after the start too, before it has said so."""
    if (folder / "exit.json").exists():
        return False
    watcher = rundir.read_object(folder / "started.json")
    if watcher:
        return identity.alive(watcher)
    with contextlib.suppress(OSError):  # removed meanwhile: not live
        return time.time() - (folder / "job.json").stat().st_mtime < START_WAIT_S
    return False


def bearers(folder: Path) -> List[proctable.Process]:
    """The live processes of this user that bear the job's marker, this one left out."""
    return [(found.pid, found.start_ticks) for found in proctable.bearing({MARKER: str(folder)})]


def watch(folder: Path, secrets: Dict[str, str]) -> int:
    """The detached half: run the job's command with ``secrets`` in its environment, hold it to its limit, end what it left, write
    ``exit.json``."""
    os.umask(0o077)
    detach.become_subreaper()
    told: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: told.append(n))
    signal.signal(signal.SIGHUP, lambda *_: None)
    job = rundir.read_object(folder / "job.json")
    rundir.write_json(folder / "started.json", {"v": 1, "t": time.time(), **identity.of(os.getpid())})
    record: Dict[str, Any] = {"v": 1, "code": None, "signal": None, "stopped": False, "timed_out": False, "error": ""}
    limit_s = float(job.get("limit_s") or 3600)
    try:
        child = _run(folder, job, secrets)
    except OSError as error:
        record["error"] = f"{(job.get('argv') or ['?'])[0]} cannot be started: {error.strerror or error}"
        return _ended(folder, record)
    deadline = time.monotonic() + limit_s
    while child.poll() is None and not told and time.monotonic() < deadline:
        _reap(child)
        time.sleep(_POLL_S)
    if child.poll() is None:
        record["stopped"], record["timed_out"] = bool(told), not told
        if not told:
            record["error"] = f"It had not ended after {limit_s:.0f} s and was stopped."
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # then everything of it is killed below
            child.wait(GRACE_S)
    left = proctable.end_all(lambda: _family(folder), grace_s=3.0, tick=lambda: _reap(child))
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands: named among the survivors
        child.wait(1.0)
    code = child.returncode
    record["code"], record["signal"] = (code, None) if code is None or code >= 0 else (None, -code)
    record["survivors"] = [{"pid": pid, "name": proctable.name(pid, secrets.values())} for pid, _ in left]
    return _ended(folder, record)


def _run(folder: Path, job: Dict[str, Any], secrets: Dict[str, str]) -> "subprocess.Popen[bytes]":
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out, log = os.open(folder / "facts.jsonl", flags, 0o600), os.open(folder / "log", flags, 0o600)
    try:
        return subprocess.Popen(
            [str(part) for part in job["argv"]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            cwd=str(folder),
            env=detach.child_environment({**job["env"], **secrets, MARKER: str(folder)}),
            start_new_session=True,
        )
    finally:
        os.close(out)
        os.close(log)


def _family(folder: Path) -> List[proctable.Process]:
    table = proctable.snapshot()
    own = {(p.pid, p.start_ticks) for p in proctable.descendants([os.getpid()], table)}
    return sorted(own | set(bearers(folder)))


def _reap(child: "subprocess.Popen[bytes]") -> None:
    """Wait for orphans that the kernel handed to us; the child itself is Popen's to wait for."""
    with contextlib.suppress(ChildProcessError):  # no child at all
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == child.pid:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def _ended(folder: Path, record: Dict[str, Any]) -> int:
    rundir.write_json(folder / "exit.json", {**record, "t": time.time()})
    return 0


def _spawn(folder: Path, secrets: Dict[str, str]) -> None:
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    secret_read = claims.hand_over(secrets)
    arguments = ["job", str(folder), "--secret-fd", str(secret_read)]
    try:
        inherited = detach.child_environment({MARKER: str(folder)})
        env = {name: value for name, value in inherited.items() if name not in secrets}
        detach.spawn(arguments, log=log, cwd=folder, env=env, pass_fds=(secret_read,))
    finally:
        os.close(secret_read)
        os.close(log)
    deadline = time.monotonic() + START_WAIT_S
    while not (folder / "started.json").exists():
        if time.monotonic() > deadline:
            said = _since(folder / "log", 0).decode("utf-8", "replace")[-500:]
            raise VerbError("failed", f"The check {folder.name} did not start.", "See its log.", said)
        time.sleep(0.02)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Between two starts in one workspace. A file system without locks gives none; then only chance is between them."""
    descriptor = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _jobs(folder: Path) -> List[Path]:
    """The jobs of a workspace, oldest first."""
    found = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and (path / "job.json").is_file()]
    return sorted(found, key=lambda path: (path / "job.json").stat().st_mtime)


def _prune(folder: Path) -> None:
    ended = [path for path in _jobs(folder) if not is_live(path) and not bearers(path)]
    for path in ended[: max(0, len(ended) - (KEEP - 1))]:
        shutil.rmtree(path, ignore_errors=True)


def _existing(workspace: PathLike, check_id: str) -> Path:
    folder = job_path(workspace, check_id)
    if not (folder / "job.json").exists():
        raise VerbError("not_found", f"There is no check {check_id} in {folder.parent.parent}.", "Start one.")
    return folder


def _since(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset))
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""
