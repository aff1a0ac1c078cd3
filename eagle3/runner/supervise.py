"""The supervisor of one attempt: starts the worker, watches it, stops it, and writes down how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3 import __version__
from eagle3.runner import derive, detach, identity, proctable, rundir, state
from eagle3.runner.ending import Reserve, ended_record
from eagle3.runner.errors import VerbError, complain
from eagle3.runner.heartbeat import Heartbeat
from eagle3.runner.identity import Stat

POLL_S = 0.5
KILL_GRACE_S = 5.0
"""Seconds between TERM to the descendants and KILL; never more than the grace of the stop itself."""


class Supervisor:
    """One attempt of one run. Made in a process of its own; ``run`` returns the exit code for a foreground caller."""

    def __init__(self, run_dir: Path, attempt: int, *, secrets: Optional[Dict[str, str]] = None, actor: str = "") -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self.folder = state.attempt_dir(run_dir, attempt)
        self.secrets = secrets or {}
        self.launch: Dict[str, Any] = rundir.read_object(self.folder / "launch.json") or rundir.read_object(
            run_dir / "launch.json"
        )
        self.actor = actor or str(self.launch.get("actor") or "")
        self.heartbeat = Heartbeat(run_dir, attempt, every_s=float(self.launch.get("heartbeat_s") or 10))
        self.reserve = Reserve(self.folder)
        self.worker: Optional["subprocess.Popen[bytes]"] = None
        self.stop: Dict[str, Any] = {}
        self._wake = -1

    def run(self, started: Any = lambda: None) -> int:
        """Supervise to the end. ``started`` is called once started.json or, where the start failed, exit.json is there."""
        os.umask(0o007 if self.launch.get("group") else 0o077)
        lock = _lock(self.folder / "lock")
        if lock is None or (self.folder / "started.json").exists() or (self.folder / "exit.json").exists():
            started()
            return 1
        self._catch_signals()
        detach.become_subreaper()
        try:
            self._start()
        except OSError as error:
            self._write_exit(
                error=f"The worker could not be started: {error.strerror or error} ({error.filename or self._argv()[0]})"
            )
            started()
            return 1
        started()
        self._watch()
        survivors = self._end_descendants()
        self._write_exit(survivors=survivors)
        code = self.worker.returncode if self.worker else 1
        return code if code >= 0 else 128 - code

    # -- start

    def _argv(self) -> List[str]:
        return [str(part).replace("{run_dir}", str(self.run_dir)) for part in self.launch.get("argv") or [""]]

    def _environment(self) -> Dict[str, str]:
        env = detach.child_environment({str(k): str(v) for k, v in (self.launch.get("env") or {}).items()})
        if self.launch.get("pythonpath"):
            env["PYTHONPATH"] = os.pathsep.join([self.launch["pythonpath"], *filter(None, [env.get("PYTHONPATH")])])
        env.update(self.secrets)
        env.update(marker(self.run_dir, self.attempt))
        return env

    def _start(self) -> None:
        self.reserve.take()
        me = identity.of(os.getpid())
        starting = rundir.read_object(self.folder / "starting.json")
        rundir.write_json(
            self.folder / "starting.json", {"v": 1, "t": time.time(), "actor": self.actor, **starting, "supervisor": me}
        )
        log = os.open(self.folder / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o660)
        try:
            self.worker = subprocess.Popen(
                self._argv(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=str(self.run_dir),
                env=self._environment(),
                start_new_session=True,
            )
        finally:
            os.close(log)
        record = {
            "v": 1,
            "attempt": self.attempt,
            "t": time.time(),
            **identity.of(self.worker.pid),
            "supervisor": me,
            "argv": self._argv(),
            "actor": self.actor,
            "versions": {"runner": __version__, "python": sys.version.split()[0]},
        }
        try:
            rundir.write_json(self.folder / "started.json", record)
        except OSError:
            self.worker.kill()
            self.worker.wait()
            raise
        self._event("attempt_started", f"attempt {self.attempt} started, pid {self.worker.pid}")

    def _catch_signals(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        self._wake = read_end
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)  # a handler, not SIG_IGN, which the worker would inherit
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)

    def _told_to_end(self, number: int, _frame: Any) -> None:
        if self.stop.get("mode") != "now":
            self.stop = {"mode": "now", "by": f"signal {signal.Signals(number).name} to the supervisor"}

    # -- watch

    def _processes(self, table: Dict[int, Stat]) -> List[Stat]:
        return proctable.descendants([os.getpid()], table)

    def _everything(self) -> List[proctable.Process]:
        """All live processes of the run: our tree, bearers of its marker, and what a heartbeat saw."""
        table = proctable.snapshot()
        found = {(p.pid, p.start_ticks) for p in self._processes(table)}
        found.update((p.pid, p.start_ticks) for p in proctable.marked(str(self.run_dir), self.attempt, table))
        found.update(p for p in self.heartbeat.seen if identity.is_running(*p))
        return sorted(found)

    def _watch(self) -> None:
        worker = self.worker
        assert worker is not None
        kill_at: Optional[float] = None
        while worker.poll() is None:
            self.heartbeat.beat(self._processes)
            self._reap()
            self._read_stop()
            if self.stop.get("mode") == "now" and kill_at is None:
                kill_at = time.monotonic() + self._grace_s()
                self._event("stop", f"stopping now{_by(self.stop)}: TERM to pid {worker.pid}, {self._grace_s():.0f} s of grace")
                with contextlib.suppress(ProcessLookupError):
                    worker.terminate()
            if kill_at is not None and time.monotonic() >= kill_at:
                self._event(
                    "stop", f"the worker did not end within {self._grace_s():.0f} s: TERM to all its processes, then KILL", "warn"
                )
                proctable.end_all(self._everything, grace_s=self._kill_grace_s(), tick=self._tick)
                return
            self._sleep()

    def _grace_s(self) -> float:
        for source in (self.stop, self.launch):
            if isinstance(source.get("grace_s"), (int, float)):
                return float(source["grace_s"])
        return 30.0

    def _kill_grace_s(self) -> float:
        return min(KILL_GRACE_S, self._grace_s())

    def _read_stop(self) -> None:
        request = state.stop_request(self.run_dir, self.attempt)
        if request and self.stop.get("mode") != "now" and request != self.stop:
            self.stop = request
            if request.get("mode") != "now":
                self._event("stop", f"asked to stop after the next checkpoint{_by(request)}")

    def _sleep(self) -> None:
        ready, _, _ = select.select([self._wake], [], [], POLL_S)
        if ready:
            os.read(self._wake, 4096)

    def _tick(self) -> None:
        if self.worker is not None:
            self.worker.poll()
        self._reap()
        self.heartbeat.beat(self._processes)

    def _reap(self) -> None:
        """Wait for orphans that the kernel handed to us, so that none stays a zombie; the worker is Popen's to wait for."""
        with contextlib.suppress(ChildProcessError):  # no child at all
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or (self.worker is not None and found.si_pid == self.worker.pid):
                    return
                os.waitpid(found.si_pid, os.WNOHANG)

    # -- end

    def _end_descendants(self) -> List[Dict[str, Any]]:
        self.heartbeat.stop_asking()
        left = self._everything()
        if left:
            names = ", ".join(f"{pid} {proctable.name(pid)[:60]}" for pid, _ in left[:5])
            self._event(
                "ending", f"the worker has ended, {len(left)} of its processes have not: TERM, then KILL", "warn", detail=names
            )
            left = proctable.end_all(self._everything, grace_s=self._kill_grace_s(), tick=self._tick)
        if self.worker is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # D state: it is named among the survivors
                self.worker.wait(timeout=1)
        return [{"pid": pid, "name": proctable.name(pid)} for pid, _ in left]

    def _write_exit(self, *, survivors: Optional[List[Dict[str, Any]]] = None, error: str = "") -> None:
        code = self.worker.returncode if self.worker else None
        record = ended_record(self.attempt, code, self.stop, survivors=survivors or [], error=error, now=time.time())
        level = "info" if record["code"] in (0, derive.EXIT_STOPPED) or record["stopped"] else "error"
        text = error or f"attempt {self.attempt} ended: {'exit code' if record['signal'] is None else 'signal'} " + str(
            record["code"] if record["signal"] is None else record["signal"]
        )
        if survivors:
            text += f"; still alive: {', '.join(str(s['pid']) for s in survivors)}"
        # Events first: a follower leaves when it sees exit.json.
        self._event("attempt_ended", text, level)
        self.reserve.write_exit(record)

    def _event(self, kind: str, text: str, level: str = "info", detail: str = "") -> None:
        row = {
            "v": 1,
            "attempt": self.attempt,
            "t": time.time(),
            "kind": kind,
            "level": level,
            "actor": "supervisor",
            "text": text,
        }
        if detail:
            row["detail"] = detail
        try:
            rundir.append_line(self.run_dir / "events.jsonl", row)
        except OSError as error:  # a full disk must not end the watch
            complain(f"{text} (event not written: {error})")


def marker(run_dir: Path, attempt: int) -> Dict[str, str]:
    """The environment variables by which every process of an attempt can be known."""
    return {"EAGLE3_RUN_ID": run_dir.name, "EAGLE3_ATTEMPT": str(attempt), "EAGLE3_RUN_DIR": str(run_dir)}


def _by(stop: Dict[str, Any]) -> str:
    return f" (asked by {stop['by']})" if stop.get("by") else ""


def _lock(path: Path) -> Optional[int]:
    """Hold the attempt for as long as this process lives; None where another supervisor has it.

    Where the file system has no locks (some network ones), the claim of the attempt's folder alone decides.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        complain(f"no lock on {path}: {error}")
    return descriptor


def read_secrets(descriptor: int) -> Dict[str, str]:
    """The secrets that the launcher hands over through a pipe. Raises ValueError where it died before it had."""
    with os.fdopen(descriptor, "rb") as pipe:
        found = json.loads(pipe.read().decode("utf-8"))
    return {str(key): str(value) for key, value in found.items()}


def claim_next(run_dir: Path) -> int:
    """The attempt that a foreground supervisor (a batch job) takes: the first, or the one after an ended one.

    Raises VerbError("busy") where the last attempt may still be alive: a job submitted twice is harmless.
    """
    numbers = state.attempts(run_dir)
    if numbers:
        now_state = state.summary(run_dir, time.time())["state"]
        if now_state in state.LIVE:
            raise VerbError("busy", f"The run {run_dir.name} is {now_state} already.", "Stop it first.")
    attempt = numbers[-1] + 1 if numbers else 1
    if not rundir.claim(state.attempt_dir(run_dir, attempt), run_dir.stat().st_mode & 0o2770):
        raise VerbError("busy", f"Another start of {run_dir.name} was faster.", "Look at the run's state.")
    return attempt
