"""The supervisor of one attempt: starts the worker, watches it, stops it, and writes down how it ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.runner import claims, derive, detach, events, identity, own_children, proctable, redact, rundir, state, worker
from eagle3.runner.ending import Reserve, ended_record
from eagle3.runner.errors import VerbError
from eagle3.runner.heartbeat import Heartbeat
from eagle3.runner.identity import Stat
from eagle3.runner.services import giving_way, restoring
from eagle3.runner.watch import Watch

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
        self._turn = 0
        self._wake = -1

    def run(self, started: Any = lambda: None) -> int:
        """Supervise to the end. ``started`` is called once started.json or, where the start failed, exit.json is there."""
        os.umask(0o007 if self.launch.get("group") else 0o077)
        lock = claims.lock(self.folder / "lock")
        if lock is None or (self.folder / "started.json").exists() or (self.folder / "exit.json").exists():
            started()
            return 1
        watch = Watch(self.run_dir, self.attempt, self.launch, self.secrets, self.heartbeat, self._event, self._stop_now)
        record: Optional[Dict[str, Any]] = None
        self._catch_signals()
        detach.become_subreaper()
        try:
            error = self._start()
            if error or self.worker is None:
                record = self._write_exit(error=error)
                started()
                return 1
            started()
            watch.begin()
            self._watch(watch)
            record = self._write_exit(survivors=self._end_descendants())
            code = self.worker.returncode
            return code if code is not None and code >= 0 else 128 - (code or 0)
        finally:
            # Whatever has happened, what was stopped for the run is started again; exit.json is on disk before.
            restoring.restore(self.run_dir, events.SUPERVISOR, turn=self._turn)
            if record is not None:  # only now: telling may take its time
                watch.ended(record)

    # -- start

    def _start(self) -> str:
        """Start the worker; the sentence that says why not, where it cannot. No worker and no sentence: a stop came first."""
        try:
            self.reserve.take()
            starting = rundir.read_object(self.folder / "starting.json")
            me = identity.of(os.getpid())
            rundir.write_json(
                self.folder / "starting.json", {"v": 1, "t": time.time(), "actor": self.actor, **starting, "supervisor": me}
            )
            if giving_way.needed(self.run_dir, self.launch):
                self._turn = giving_way.wait_for_turn(self.run_dir)
                giving_way.give_way(self.run_dir, self.attempt, self.launch, self._turn, self._event)
            self._read_stop()
            if self.stop.get("mode") == "now":
                return ""
            self.worker = worker.start(self.run_dir, self.attempt, self.launch, self.secrets, self.actor)
        except OSError as error:
            what = error.filename or worker.argv(self.run_dir, self.launch)[0]
            return f"The worker could not be started: {error.strerror or error} ({what})"
        except VerbError as error:
            return f"{error.text} {error.remedy}".strip()
        self._event("attempt_started", f"attempt {self.attempt} started, pid {self.worker.pid}", actor=self.actor)
        return ""

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
        return own_children.leave_out(proctable.descendants([os.getpid()], table))

    def _everything(self) -> List[proctable.Process]:
        """All live processes of the run: our tree, bearers of its marker, and what a heartbeat saw."""
        table = proctable.snapshot()
        found = {(p.pid, p.start_ticks) for p in self._processes(table)}
        found.update((p.pid, p.start_ticks) for p in proctable.marked(str(self.run_dir), self.attempt, table))
        found.update(p for p in self.heartbeat.seen if identity.is_running(*p))
        return sorted(found)

    def _watch(self, watch: Watch) -> None:
        child = self.worker
        assert child is not None
        kill_at: Optional[float] = None
        limit_at = time.monotonic() + float(self.launch.get("time_limit_s") or float("inf"))
        while child.poll() is None:
            self.heartbeat.beat(self._processes)
            self._reap()
            self._read_stop()
            watch.tick()
            if time.monotonic() >= limit_at and self.stop.get("mode") != "now":
                self.stop = {"mode": "now", "by": f"the time limit of {float(self.launch['time_limit_s']):.0f} s"}
            if self.stop.get("mode") == "now" and kill_at is None:
                kill_at = time.monotonic() + self._grace_s()
                text = f"stopping now{_by(self.stop)}: TERM to pid {child.pid}, {self._grace_s():.0f} s of grace"
                self._event("stop", text, actor=str(self.stop.get("by") or events.SUPERVISOR))
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
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

    def _stop_now(self, by: str) -> None:
        if self.stop.get("mode") != "now":
            self.stop = {"mode": "now", "by": by}

    def _read_stop(self) -> None:
        request = state.stop_request(self.run_dir, self.attempt)
        if request and self.stop.get("mode") != "now" and request != self.stop:
            self.stop = request
            if request.get("mode") != "now":
                by = str(request.get("by") or events.SUPERVISOR)
                self._event("stop", f"asked to stop after the next checkpoint{_by(request)}", actor=by)

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
            names = ", ".join(f"{pid} {proctable.name(pid, self.secrets.values())[:60]}" for pid, _ in left[:5])
            self._event(
                "ending", f"the worker has ended, {len(left)} of its processes have not: TERM, then KILL", "warn", detail=names
            )
            left = proctable.end_all(self._everything, grace_s=self._kill_grace_s(), tick=self._tick)
        if self.worker is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # D state: it is named among the survivors
                self.worker.wait(timeout=1)
        return [{"pid": pid, "name": proctable.name(pid, self.secrets.values())} for pid, _ in left]

    def _write_exit(self, *, survivors: Optional[List[Dict[str, Any]]] = None, error: str = "") -> Dict[str, Any]:
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
        return record

    def _event(
        self,
        kind: str,
        text: str,
        level: str = "info",
        actor: str = events.SUPERVISOR,
        *,
        detail: str = "",
        guard: Optional[Dict[str, Any]] = None,
    ) -> None:
        hide = self.secrets.values()
        text, detail = redact.redact(text, hide), redact.redact(detail, hide)
        actor = actor or events.SUPERVISOR
        events.append(self.run_dir, self.attempt, kind, text, level=level, actor=actor, detail=detail, guard=guard)


def _by(stop: Dict[str, Any]) -> str:
    return f" (asked by {stop['by']})" if stop.get("by") else ""
