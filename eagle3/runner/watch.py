"""What the supervisor does besides starting and ending the worker: notices, writes events, and has the operator told.

One object, ticked from the supervisor's loop. No tick waits for anything: stacks, GPUs and alerts have threads and children of
their own.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Set, Tuple

from eagle3.runner import control, derive, events, hooks, identity, ranks, redact, rundir, stack_dump, state
from eagle3.runner.alert_ledger import Ledger
from eagle3.runner.alerts import LONGEST_FINAL_WAIT_S, Alerter
from eagle3.runner.clock_jumps import ClockJumps, clocks
from eagle3.runner.conditions import LOW_FACTOR, QUIET_HEARTBEATS, EventTail, Excursion, LowDisk, is_guard, log_tail
from eagle3.runner.errors import complain
from eagle3.runner.gpu_faults import Fault, Faults, xid_fault
from eagle3.runner.heartbeat import Heartbeat
from eagle3.runner.log_limit import LIMIT_BYTES, LogLimit
from eagle3.runner.xid_listener import XidListener

Event = Callable[..., None]
"""Writes an event: kind, text, level, detail, a guard's record."""

_DETAIL_BYTES = 1500
LOST_S = 30.0
"""So much more between two looks than there should be: the clock was set, the machine slept, or it is late."""
CLOCK_JUMP_S = 60.0
"""Where a launch of an older version does not say."""


class Watch:
    """Watches one attempt. ``secrets`` are those of the launch; ``event`` writes an event of the supervisor; ``stop_now`` ends
    the attempt, given in whose name."""

    def __init__(
        self,
        run_dir: Path,
        attempt: int,
        launch: Dict[str, Any],
        secrets: Dict[str, str],
        heartbeat: Heartbeat,
        event: Event,
        stop_now: Callable[[str], None],
    ) -> None:
        self._run_dir, self._attempt, self._heartbeat, self._event = run_dir, attempt, heartbeat, event
        self._secrets = secrets
        self._every_s = float(launch.get("heartbeat_s") or 10)
        self._folder = state.attempt_dir(run_dir, attempt)
        self._lock = _lock(self._folder)
        self._alerter = _alerter(run_dir, attempt, launch, secrets, event)
        self._tail = EventTail(run_dir / "events.jsonl")
        self._disk = LowDisk(int(launch.get("disk_floor_bytes") or 0))
        self._faults = Faults()
        self._xids = XidListener()
        self._xid_count = 0
        self._gpu_report: Optional[Dict[str, Any]] = None
        self._stalls = 0
        self._stall_response = str((launch.get("stall") or {}).get("response") or "warn")
        self._stalled = False
        self._stall_s = float((launch.get("stall") or {}).get("after_s") or derive.QUIET_AT_LEAST_S)
        self._clock_response = str((launch.get("clock") or {}).get("response") or "warn")
        self._clock_jump_s = float((launch.get("clock") or {}).get("jump_s") or CLOCK_JUMP_S)
        self._quiet_s = QUIET_HEARTBEATS * self._every_s
        self._clock = ClockJumps(self._clock_jump_s, clocks(), self._quiet_s)
        self._lost = Excursion(self._quiet_s)
        self._stop_now = stop_now
        self._pause_due = False
        self._jumps = 0
        self._looked_at = time.time()
        self._silence_counts_from = 0.0
        self._sign: Tuple[Any, ...] = ()
        self._sign_at = time.monotonic()
        self._excused: Optional[Tuple[Any, ...]] = None
        self._dump: Optional["_Dump"] = None
        self._logs = LogLimit(int(launch.get("log_limit_bytes") or LIMIT_BYTES))
        self._next = time.monotonic() + self._every_s
        self._low_count = 0
        self._defects: Set[str] = set()
        self._settling: Optional[threading.Thread] = None

    def begin(self) -> None:
        """The worker has started. What the supervisor of the attempt before could not tell any more is told now."""
        self._looked_at, self._clock = time.time(), ClockJumps(self._clock_jump_s, clocks(), self._quiet_s)
        if self._attempt > 1:
            args = (self._run_dir, self._attempt - 1, self._secrets)
            self._settling = threading.Thread(target=settle, args=args, daemon=True)
            self._settling.start()

    def tick(self) -> None:
        """Look at whatever is due. Called often; cheap when nothing is."""
        now = time.monotonic()
        if self._alerter is not None:
            self._alerter.tick()
        self._safely(self._look_at_logs)
        self._safely(self._look_at_stacks)
        if now >= self._next:
            self._next = now + self._every_s
            for look in (self._look_at_events, self._look_at_disk, self._look_at_gpus, self._look_at_clock, self._look_for_stall):
                self._safely(look)

    def _safely(self, look: Callable[[], None]) -> None:
        """A defect in a look, or a file that a foreign hand wrote, must not take the supervisor from its run."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more; it is said once for each look
            if look.__name__ not in self._defects:
                self._defects.add(look.__name__)
                self._event("watch_defect", f"a defect in {look.__name__.strip('_<>')}: {type(error).__name__}: {error}", "warn")

    def ended(self, record: Dict[str, Any]) -> None:
        """``exit.json`` is on disk: tell how it ended. Waits a bounded time for the delivery, and for nothing else."""
        self._xids.stop()
        self._safely(lambda: self._tell_end(record))  # first, so that no slow delivery of something less is in its way
        self._safely(self._look_at_events)
        self._safely(self._look_at_logs)
        if self._dump is not None:
            self._tell_stall(self._dump)
        if self._alerter is not None:
            self._alerter.close()
        if self._settling is not None:
            self._settling.join(LONGEST_FINAL_WAIT_S)
        _unlock(self._lock)

    def _tell_end(self, record: Dict[str, Any]) -> None:
        if self._alerter is not None:
            kind, level, text, detail = ending(self._run_dir, self._attempt, record)
            self._alerter.tell(f"end-{self._attempt}", kind, text, level, detail)

    def _tell(self, fact: str, kind: str, text: str, level: str, detail: str = "") -> None:
        if self._alerter is not None:
            self._alerter.tell(fact, kind, text, level, detail)

    def _look_at_events(self) -> None:
        for row in self._tail.rows():
            if is_guard(row, self._attempt):
                level = str(row.get("level") or "warn")
                fact = f"guard-{self._attempt}-{row['offset']}"
                self._tell(fact, "guard", str(row.get("text") or ""), level, str(row.get("detail") or ""))

    def _look_at_disk(self) -> None:
        free_bytes = self._heartbeat.disk_free_bytes
        changed = self._disk.look(free_bytes)
        if changed is None or free_bytes is None:
            return
        gib, floor = f"{free_bytes / 2**30:.1f} GiB free", f"{self._disk.floor_bytes / 2**30:.1f} GiB"
        if not changed:
            self._event("disk_well", f"the run's disk is well again: {gib}", "info")
            return
        self._low_count += 1
        found, action = f"the run's disk is low: {gib}, at {floor} the stage ends or waits.", "Free some space."
        text, counts = f"{found} {action}", {"floor_bytes": self._disk.floor_bytes}
        self._guard("disk", text, free_bytes, self._disk.floor_bytes * LOW_FACTOR, counts, "warn", action)
        self._tell(f"disk-{self._attempt}-{self._low_count}", "disk_low", text, "warn")

    def _look_at_gpus(self) -> None:
        report = self._heartbeat.gpu_report
        if report is not None and report is not self._gpu_report:
            self._gpu_report = report
            if report.get("status") == "ok" and report.get("source") == "nvml":
                self._xids.start()
            for fault in self._faults.look(report):
                self._tell_fault(fault)
        for found in self._xids.events():
            if "error" in found:
                self._event("gpu_watch", str(found["error"]), "info")
            else:
                self._xid_count += 1
                self._tell_fault(xid_fault(found, self._xid_count))

    def _tell_fault(self, fault: Fault) -> None:
        self._event("gpu_fault", fault.text, fault.level)
        if fault.level == "error":
            self._tell(f"gpu-{self._attempt}-{fault.key}", "gpu_fault", fault.text, fault.level)

    def _look_at_stacks(self) -> None:
        if self._dump is not None and self._dump.done():
            dump, self._dump = self._dump, None
            self._tell_stall(dump)
            if self._stall_response == "stop":
                self._stop_stalled()

    def _stop_stalled(self) -> None:
        """The guard's spec says that a silent run ends; its stacks are in the log by now. The supervisor obeys the order."""
        if self._stalled and not state.stop_request(self._run_dir, self._attempt):
            self._stop("the guard stall")

    def _stop(self, by: str) -> None:
        order = {"v": 1, "attempt": self._attempt, "mode": "now", "by": by, "t": time.time()}
        try:
            rundir.write_json(self._run_dir / "stop.json", order)
        except OSError as error:  # a full disk must not keep alive what a guard ends
            complain(f"stop.json could not be written: {error}")
            self._stop_now(by)

    def _guard(
        self, name: str, text: str, value: float, threshold: float, counts: Mapping[str, float], response: str, action: str
    ) -> None:
        record = events.guard_record(name, value, threshold, counts, response, action)
        self._event(f"guard-{name}", text, "error" if response == "stop" else "warn", guard=record)

    def _look_at_clock(self) -> None:
        """Whether the clock has left the steady one since the last look: it was set."""
        self._pause_for_the_clock()
        found, clock = self._clock.look(clocks()), self._clock
        if found is None or self._clock_response == "off":
            return
        if not found:
            times = "once" if clock.moves == 1 else f"{clock.moves} times"
            text = f"the clock keeps still again: it jumped {times}, by {clock.net_s:+.0f} s in all; the next jump is told anew"
            self._event("clock_still", text, "info")
            return
        action = "Times, rates and ages around it are wrong, the work is not: look at the machine's time service."
        text = f"the clock of this machine jumped by {clock.jump_s:+.0f} s. {action}"
        counts = {"seconds": round(clock.between_s, 3)}
        self._guard("clock", text, clock.jump_s, self._clock_jump_s, counts, self._clock_response, action)
        self._jumps += 1
        self._tell(f"clock-{self._attempt}-{self._jumps}", "guard", text, "error" if self._clock_response == "stop" else "warn")
        self._pause_due = self._clock_response == "pause"
        self._pause_for_the_clock()
        if self._clock_response == "stop" and not state.stop_request(self._run_dir, self._attempt):
            self._stop("the guard clock")

    def _pause_for_the_clock(self) -> None:
        """Asked for again at the next look where it cannot be written (a full disk)."""
        if self._pause_due:
            control.hold(self._run_dir, self._attempt, "clock")
            self._pause_due = False

    def _look_for_stall(self) -> None:
        now, steady = time.time(), time.monotonic()
        _, known = state.facts(self._run_dir, now)
        sign = (known.started.get("t"), known.progress.get("t"), known.row_t)
        if sign != self._sign:
            self._sign, self._sign_at = sign, steady
        if self._has_jumped(now):
            return
        known = known._replace(unheard_s=steady - self._sign_at)
        word, text = derive.state(known)
        if word != "stalled":
            if self._stalled:
                self._event("stall_over", "the run moves again", "info")
            self._stalled = False
        elif not self._stalled and self._stall_response != "off":
            self._stalled = True
            self._stalls += 1
            slowest = ranks.slowest_text(ranks.read(self._run_dir, self._attempt), now)
            tail = f"; {slowest}" if slowest else ""
            self._tell_silence(known, text.partition(";")[0] + tail)
            text += tail
            self._dump = _Dump(self._run_dir, self._attempt, f"stall-{self._attempt}-{self._stalls}", text)

    def _tell_silence(self, known: derive.Facts, text: str) -> None:
        silent_s, allowed_s = derive.silence(known)
        action = "Its threads' stacks are in the log in a moment: look where they stand, and stop the run if nothing moves."
        if self._stall_response == "stop":
            action = (
                "It is stopped once its threads' stacks are in the log (guards.stall): look where they stand, then resume it."
            )
        counts = {"usual_gap_s": known.gap_s or 0.0, "stalls": float(self._stalls)}
        self._guard("stall", f"{text}. {action}", silent_s, allowed_s, counts, self._stall_response, action)

    def _has_jumped(self, now: float) -> bool:
        """Whether time was lost lately: the run's last sign looks old then, so it has as long again to be heard. Once for each
        sign: on a machine that is late at every look, or whose clock is set every minute, a stall is seen all the same."""
        lost_s = now - self._looked_at - self._every_s
        self._looked_at = now
        begins = self._lost.look(lost_s > LOST_S, time.monotonic())
        if lost_s > LOST_S and self._excused != self._sign:
            self._excused = self._sign
            self._silence_counts_from = time.monotonic() + self._stall_s
            text = f"{lost_s:.0f} s are missing here: the clock was set, or the machine slept; the run's silence counts anew"
            if begins:
                self._event("clock", text, "info")
        return time.monotonic() < self._silence_counts_from

    def _tell_stall(self, dump: "_Dump") -> None:
        found = dump.text()
        self._event("stack_dump", found, "warn")
        self._tell(dump.fact, "stall", dump.why, "warn", found)

    def _look_at_logs(self) -> None:
        told = self._logs.check([self._folder / "run.log", *(self._run_dir / "logs").glob("*.log")])
        if told is not None:
            level, text = told
            self._event("log_limit", text, level)
            if level == "error":
                self._tell(f"log-{self._attempt}", "disk_low", text, level)


class _Dump:
    """Stacks being collected for one stall, in a thread."""

    def __init__(self, run_dir: Path, attempt: int, fact: str, why: str) -> None:
        self.fact, self.why = fact, why
        self._found = ""
        self._thread = threading.Thread(target=self._work, args=(run_dir, attempt), daemon=True)
        self._thread.start()

    def _work(self, run_dir: Path, attempt: int) -> None:
        try:
            self._found = stack_dump.dump(run_dir, attempt, by="the supervisor")["text"]
        except OSError as error:
            self._found = f"no stack could be written: {error.strerror or error}"

    def done(self) -> bool:
        return not self._thread.is_alive()

    def text(self) -> str:
        return self._found or "the stacks were still being written when the run ended"


def ending(run_dir: Path, attempt: int, record: Dict[str, Any]) -> Tuple[str, str, str, str]:
    """How the attempt ended, for an alert: kind, level, text, detail. ``record`` is its exit.json, empty where none is."""
    found = state.summary(run_dir, time.time())
    text = str(found["state_text"]) if int(found["attempt"]) == attempt else ""
    if record.get("code") == 0:
        verdict = rundir.read_object(run_dir / "result.json").get("verdict_text")
        return "finish", "info", f"finished: {verdict}" if verdict else text or "finished", ""
    if record.get("stopped"):
        return "stop", "info", text or "stopped", ""
    tail = log_tail(state.attempt_dir(run_dir, attempt) / "run.log", _DETAIL_BYTES)
    code = record.get("code") if record.get("signal") is None else f"signal {record.get('signal')}"
    return "failure", "error", text or (f"ended with {code}" if record else "ended, exit unknown"), tail


def settle(run_dir: Path, attempt: int, secrets: Dict[str, str]) -> None:
    """Tell what the dead supervisor of an attempt had still to tell, and that the attempt has ended.

    For whoever comes after it (the next attempt's supervisor, a stop). Each fact is told once, whoever calls this and how often.
    An attempt whose supervisor or worker lives is left alone.
    """
    folder = state.attempt_dir(run_dir, attempt)
    started = rundir.read_object(folder / "started.json")
    if not started or identity.alive(started) or identity.alive(started.get("supervisor") or {}):
        return
    launch = rundir.read_object(folder / "launch.json") or rundir.read_object(run_dir / "launch.json")
    lock = _lock(folder)
    if lock is None:
        return  # another one is at it
    try:
        alerter = _alerter(run_dir, attempt, launch, secrets, _event_writer(run_dir, attempt))
        if alerter is None:
            return
        alerter.retell()
        record = rundir.read_object(folder / "exit.json")
        kind, level, text, detail = ending(run_dir, attempt, record)
        alerter.tell(f"end-{attempt}", kind, text, level, detail)
        alerter.close()
    finally:
        _unlock(lock)


def _alerter(run_dir: Path, attempt: int, launch: Dict[str, Any], secrets: Dict[str, str], event: Event) -> Optional[Alerter]:
    found = hooks.hooks_of(launch, secrets)
    if found is None:
        return None
    label = launch.get("label") or {}
    facts = {
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        "attempt": attempt,
        "host": str(identity.of(os.getpid())["host"]),
        "label": {str(key): redact.redact(str(value)) for key, value in label.items()},
    }
    ledger = Ledger(state.attempt_dir(run_dir, attempt))
    return Alerter(found, ledger, facts, event, secrets=tuple(secrets.values()))


def _event_writer(run_dir: Path, attempt: int) -> Event:
    return lambda kind, text, level: events.append(run_dir, attempt, kind, text, level=level, actor="runner")


def _lock(folder: Path) -> Optional[int]:
    """Be the one who tells this attempt's alerts: a descriptor to give to ``_unlock``; None where another process is.

    Where no lock can be had (a full disk, some network file systems) the ledger alone keeps a fact from being told twice.
    """
    descriptor = -1
    try:
        descriptor = os.open(folder / "alerts.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        complain(f"no lock on the alerts of {folder}: {error}")
    return descriptor


def _unlock(descriptor: Optional[int]) -> None:
    if descriptor is not None and descriptor >= 0:
        os.close(descriptor)
