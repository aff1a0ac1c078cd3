"""The helper channel: JSON lines on stdin, marked JSON lines on stdout, until stdin closes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, Callable, Dict

from eagle3.runner import verbs
from eagle3.runner.errors import VerbError

MAX_REQUEST_BYTES = 8 << 20
MAX_AT_ONCE = 32


class Server:
    """Answers every line that asks something, each verb in a thread of its own with its own limit of time."""

    def __init__(
        self,
        output: BinaryIO,
        marker: str = "",
        *,
        handle: Callable[[str, Dict[str, Any]], Dict[str, Any]] = verbs.handle,
        limits_s: Dict[str, float] = verbs.LIMITS_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._output = output
        self._marker = marker.encode("utf-8")
        self._handle = handle
        self._limits_s = limits_s
        self._clock = clock
        self._write_lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_AT_ONCE)

    def run(self, source: BinaryIO) -> None:
        """Serve until ``source`` ends. A line that is no request gets an answer that says so; nothing ends the loop."""
        while True:
            line = source.readline(MAX_REQUEST_BYTES)
            if not line:
                return
            if not line.endswith(b"\n") and len(line) >= MAX_REQUEST_BYTES:
                while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = source.readline(MAX_REQUEST_BYTES)
                self._refuse(None, VerbError("usage", f"A request is longer than {MAX_REQUEST_BYTES >> 20} MiB."))
            elif line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        number: Any = None
        try:
            request = json.loads(line.decode("utf-8"))
            if not isinstance(request, dict):
                raise ValueError("it is no object")
            number = request.get("id")
            verb, args = request.get("verb"), request.get("args") or {}
        except (ValueError, RecursionError) as error:
            # Not the line itself: it may hold secrets.
            self._refuse(number, VerbError("usage", f"A request could not be read: {error}.", "Send one JSON object a line."))
            return
        if not self._slots.acquire(blocking=False):
            self._refuse(number, VerbError("busy", f"{MAX_AT_ONCE} requests are unanswered already.", "Wait, then ask again."))
            return
        _Call(self, number, str(verb), args).start()

    def _refuse(self, number: Any, error: VerbError) -> None:
        self.answer({"id": number, "ok": False, "now": self._clock(), "error": error.as_dict()})

    def answer(self, reply: Dict[str, Any]) -> None:
        """Write one reply line. A reader that is gone ends the channel."""
        content = self._marker + json.dumps(reply, allow_nan=True).encode("ascii") + b"\n"
        with self._write_lock:
            try:
                self._output.write(content)
                self._output.flush()
            except (BrokenPipeError, ConnectionError, ValueError):
                verbs.PRESENCE.leave()
                os._exit(0)  # runs are detached: nothing of theirs ends with us

    def limit_s(self, verb: str) -> float:
        """Seconds that ``verb`` may take."""
        return self._limits_s.get(verb, 30.0)

    def outcome(self, number: Any, verb: str, args: Any) -> Dict[str, Any]:
        """The reply to one request, whatever happens while it is made."""
        try:
            result = self._handle(verb, args)
            return {"id": number, "ok": True, "now": self._clock(), "result": result}
        except VerbError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the channel outlives a defect in one verb, and reports it
            where = traceback.format_exc(limit=-4)
            failure = VerbError("failed", f"The verb {verb} met a defect: {type(error).__name__}: {error}", "Report it.", where)
        return {"id": number, "ok": False, "now": self._clock(), "error": failure.as_dict()}

    def late(self, number: Any, verb: str) -> Dict[str, Any]:
        """The reply to a request that has used up its time."""
        text = f"The verb {verb} did not answer within {self.limit_s(verb):.0f} s."
        error = VerbError("busy", text, "Ask again; a disk or a driver of the container may hang.")
        return {"id": number, "ok": False, "now": self._clock(), "error": error.as_dict()}

    def release(self) -> None:
        """A call has really ended (it may have been answered as late before)."""
        self._slots.release()


class _Call:
    """One request: answered once, by its thread or by its timer, whichever is first."""

    def __init__(self, server: Server, number: Any, verb: str, args: Any) -> None:
        self._server, self._number, self._verb, self._args = server, number, verb, args
        self._once = threading.Lock()
        self._timer = threading.Timer(server.limit_s(verb), self._late)
        self._timer.daemon = True

    def start(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()
        self._timer.start()

    def _work(self) -> None:
        try:
            reply = self._server.outcome(self._number, self._verb, self._args)
            self._timer.cancel()
            if self._once.acquire(blocking=False):
                self._server.answer(reply)
        finally:
            self._server.release()

    def _late(self) -> None:
        if self._once.acquire(blocking=False):
            self._server.answer(self._server.late(self._number, self._verb))


def main(marker: str) -> int:
    """Serve stdin and stdout. What else writes to stdout goes to stderr, so that nothing gets between the lines."""
    os.umask(0o077)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Server(output, marker).run(sys.stdin.buffer)
    verbs.PRESENCE.leave()
    sys.stderr.flush()
    # Verbs that still hang must not keep us: the channel is closed, nobody would hear them.
    os._exit(0)
