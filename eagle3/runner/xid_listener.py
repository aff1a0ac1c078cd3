"""The supervisor's side of the watch for Xid events: a child that listens, and a thread that reads it."""

from __future__ import annotations

import contextlib
import json
import queue
import select
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional

from eagle3.runner import detach, own_children

SILENT_S = 60.0
"""The child says something every second: silent for so long, it hangs in the driver and is replaced."""
RESTARTS = 5
_RESTART_S = 30.0


class XidListener:
    """``start`` once; ``events`` gives what came since, in the order of arrival. Never waits for the driver."""

    def __init__(self) -> None:
        self._found: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin to listen; a second call changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def events(self) -> List[Dict[str, Any]]:
        """``{"xid","index","uuid"}`` of each event, or ``{"error"}`` once where events cannot be had."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    def stop(self) -> None:
        """End the child. The thread ends by itself."""
        self._ended.set()
        self._kill()

    def _work(self) -> None:
        last = ""
        for _ in range(RESTARTS):
            try:
                last = self._listen() or last
            except OSError as error:
                last = str(error)
            finally:
                self._kill()
            if self._ended.wait(_RESTART_S):
                return
        self._found.put({"error": f"Xid events cannot be had: {last or 'the listener ends each time'}"})

    def _listen(self) -> str:
        """Read one child until it ends or hangs; what it said of an error."""
        if self._ended.is_set():
            return ""
        child = own_children.start(
            detach.own_command("xid", site=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # so that select tells of every line
        )
        self._child = child
        assert child.stdout is not None
        heard_at = time.monotonic()
        with child.stdout as output:
            while not self._ended.is_set():
                if not select.select([output], [], [], 1.0)[0]:
                    if time.monotonic() - heard_at > SILENT_S:
                        return f"the driver has not answered for {SILENT_S:.0f} s"
                    continue
                line = output.readline()
                if not line:
                    return ""
                heard_at = time.monotonic()
                with contextlib.suppress(ValueError):  # half a line of a child that was killed
                    found = json.loads(line.decode("utf-8"))
                    if "error" in found:
                        return str(found["error"])
                    if "xid" in found:
                        self._found.put(found)
        return ""

    def _kill(self) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in the driver's hands
                child.wait(timeout=0.5)
