"""Telling the operator without a console: each fact once, by a thread that nothing waits for.

A hook that hangs, fails or floods costs the run nothing: deliveries happen in a child that is killed at its limit, failures
back off and are told by one event in ten, and a queue of a fixed length holds what waits.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from eagle3.runner import detach, own_children
from eagle3.runner.alert_ledger import Ledger
from eagle3.runner.hooks import FINAL_KINDS, Hooks
from eagle3.runner.redact import redact

Alert = Dict[str, Any]
Event = Callable[[str, str, str], None]
"""Writes an event: kind, text, level."""

QUEUE_LENGTH = 64
TRIES = 3
WARN_EVERY = 10
LONGEST_BACKOFF_S = 300.0
FINAL_RETRY_S = 2.0
LONGEST_FINAL_WAIT_S = 120.0
_CHILD_SLACK_S = 5.0
"""More than a delivery may take to end what its command left behind."""
_TEXT_BYTES, _DETAIL_BYTES = 1000, 1500
"""In UTF-8: with the rest of the alert they must fit into one line of the ledger."""


class Alerter:
    """Tells facts by the operator's hooks. ``facts`` of the run (id, host, label) go into every alert; ``secrets`` are values
    that no alert may quote; ``event`` writes an event of the run."""

    def __init__(
        self,
        hooks: Hooks,
        ledger: Ledger,
        facts: Dict[str, Any],
        event: Event,
        *,
        secrets: Tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hooks, self._ledger, self._facts, self._event = hooks, ledger, facts, event
        self._secrets, self._clock = secrets, clock
        self._waiting: Deque[Alert] = collections.deque()
        self._changed = threading.Condition()
        self._closing = False
        self._close_at = float("inf")
        self._thread: Optional[threading.Thread] = None
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._next_of_kind: Dict[str, float] = {}
        self._held: Dict[str, Tuple[Alert, int]] = {}
        self._failures = self._in_a_row = 0
        self._not_before = 0.0

    def tell(self, fact: str, kind: str, text: str, level: str = "info", detail: str = "") -> None:
        """Have the fact told, once for ever; kinds that nobody asked for and facts already in the ledger are left out."""
        if kind not in self._hooks.on or self._ledger.known(fact):
            return
        alert = {
            "v": 1,
            "id": fact,
            "kind": kind,
            "level": level,
            "t": self._clock(),
            **self._facts,
            "text": redact(text, self._secrets).encode("utf-8", "replace")[:_TEXT_BYTES].decode("utf-8", "ignore"),
        }
        if detail:
            alert["detail"] = redact(detail, self._secrets).encode("utf-8", "replace")[-_DETAIL_BYTES:].decode("utf-8", "ignore")
        if kind in self._held:
            held, more = self._held[kind]
            self._held[kind] = (held, more + 1)
            self._ledger.write(fact, kind, "merged", into=held["id"])
            return
        self._ledger.write(fact, kind, "due", alert=alert)
        now = time.monotonic()
        if kind not in FINAL_KINDS and now < self._next_of_kind.get(kind, 0.0):
            self._held[kind] = (alert, 0)
        else:
            self._next_of_kind[kind] = now + self._hooks.min_interval_s
            self._queue(alert)

    def retell(self) -> None:
        """Deliver what a supervisor that died had still to tell."""
        for alert in self._ledger.due():
            self._queue(alert)

    def tick(self) -> None:
        """Let go what was held back for its kind's interval."""
        now = time.monotonic()
        for kind in [kind for kind in self._held if now >= self._next_of_kind.get(kind, 0.0)]:
            self._release(kind)
            self._next_of_kind[kind] = now + self._hooks.min_interval_s

    def close(self) -> None:
        """Deliver what waits, the end of the run first, within a bounded time. Nothing is told after this."""
        for kind in list(self._held):
            self._release(kind)
        limit_s = self._limit_s()
        wait_s = min(LONGEST_FINAL_WAIT_S, (1 + TRIES) * limit_s + TRIES * FINAL_RETRY_S)
        with self._changed:
            self._closing = True
            self._close_at = time.monotonic() + wait_s
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)
            self._kill(self._child)

    def _release(self, kind: str) -> None:
        alert, more = self._held.pop(kind)
        self._queue({**alert, "text": f"{alert['text']} (and {more} more of this kind)"} if more else alert)

    def _queue(self, alert: Alert) -> None:
        with self._changed:
            if alert["kind"] in FINAL_KINDS:
                self._waiting.appendleft(alert)
            elif len(self._waiting) >= QUEUE_LENGTH:
                self._ledger.write(alert["id"], alert["kind"], "dropped")
                return
            else:
                self._waiting.append(alert)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    # -- in the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting or time.monotonic() >= self._close_at:
                    return
                alert = self._waiting.popleft()
            self._deliver(alert)

    def _deliver(self, alert: Alert) -> None:
        fact, kind = alert["id"], alert["kind"]
        self._ledger.write(fact, kind, "sending")
        error = ""
        for number in range(1, TRIES + 1):
            if not self._pause():
                error = error or "the run had ended and there was no more time"
                break
            error = self._try(alert)
            if not error:
                self._ledger.write(fact, kind, "sent", tries=number)
                if self._in_a_row:
                    self._say("alert_delivered", f"alerts are delivered again, after {self._in_a_row} failures", "info")
                self._in_a_row = 0
                return
            self._count_failure(kind, error)
        self._ledger.write(fact, kind, "failed", error=error)

    def _pause(self) -> bool:
        """Wait until the next try is due, shorter once the run has ended; false where there is no time for it."""
        with self._changed:
            while True:
                now = time.monotonic()
                if now >= self._close_at:
                    return False
                due = min(self._not_before, self._close_at - 0.01) if self._closing else self._not_before
                if self._closing:
                    due = min(due, now + FINAL_RETRY_S)
                    self._not_before = due
                if now >= due:
                    return True
                self._changed.wait(due - now)

    def _count_failure(self, kind: str, error: str) -> None:
        self._failures += 1
        self._in_a_row += 1
        backoff_s = min(self._hooks.retry_s * 2 ** min(self._in_a_row - 1, 16), LONGEST_BACKOFF_S)
        self._not_before = time.monotonic() + backoff_s
        if self._failures % WARN_EVERY == 1:
            times = f" ({self._failures} failures so far)" if self._failures > 1 else ""
            self._say("alert_failed", f"an alert ({kind}) could not be delivered: {error}{times}", "warn")

    def _say(self, kind: str, text: str, level: str) -> None:
        self._event(kind, redact(text, self._secrets), level)

    def _limit_s(self) -> float:
        hooks = bool(self._hooks.command) + bool(self._hooks.webhook)
        return hooks * self._hooks.timeout_s + _CHILD_SLACK_S

    def _try(self, alert: Alert) -> str:
        """One delivery; empty where it worked."""
        if self._hooks.missing and not self._hooks.command:
            return f"the webhook's address is the secret {self._hooks.missing}, which this process has not been given"
        request = {
            "command": self._hooks.command,
            "webhook": self._hooks.webhook,
            "timeout_s": self._hooks.timeout_s,
            "alert": alert,
        }
        child = None
        try:
            child = own_children.start(
                detach.own_command("deliver"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._child = child
            out, _ = child.communicate(json.dumps(request).encode("ascii"), timeout=self._limit_s())
            answer = json.loads(out.decode("utf-8"))
            return str(answer.get("error") or "it was not delivered") if answer.get("failed") else ""
        except subprocess.TimeoutExpired:
            return f"it was not delivered within {self._limit_s():.0f} s"
        except (OSError, ValueError) as error:
            return f"its delivery broke off: {type(error).__name__}"
        finally:
            self._kill(child)
            self._child = None

    @staticmethod
    def _kill(child: Optional["subprocess.Popen[bytes]"]) -> None:
        if child is None or child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands
            child.wait(timeout=1)
