"""``runner deliver``: brings one alert to its hooks, in a process that can be killed.

It reads the alert on stdin and tells the outcome on stdout.
The operator's command runs without a shell in a session of its own, with the alert as JSON on its stdin and in
``EAGLE3_ALERT_*``; whatever it has started is ended with it. A webhook gets the same JSON by POST. The address, which may be a
secret, comes on stdin and stands in no argument list, environment or message.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import detach, proctable, redact
from eagle3.runner.own_children import unmarked_environment

_SAID_BYTES = 2000
_KILL_GRACE_S = 1.0

Alert = Dict[str, Any]


def main() -> int:
    """Deliver what stdin describes: ``{"command", "webhook", "timeout_s", "alert"}``; answers ``{"error": ""}``."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    timeout_s = float(request["timeout_s"])
    problems = []
    if request.get("command"):
        problems.append(run_command(request["command"], request["alert"], timeout_s))
    if request.get("webhook"):
        problems.append(post(request["webhook"], request["alert"], timeout_s))
    # Half delivered is delivered: to repeat the half that worked would tell the same fact twice.
    failed = bool(problems) and all(problems)
    sys.stdout.write(json.dumps({"error": "; ".join(filter(None, problems)), "failed": failed}) + "\n")
    return 1 if failed else 0


def alert_environment(alert: Alert) -> Dict[str, str]:
    """The alert for a command that would rather not read JSON: ``EAGLE3_ALERT_KIND``, ``_TEXT``, ``_RUN_ID`` and so on."""
    plain = {key: value for key, value in alert.items() if isinstance(value, (str, int, float)) and not isinstance(value, bool)}
    return {
        f"EAGLE3_ALERT_{key.upper()}": str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")
        for key, value in plain.items()
    }


def run_command(argv: List[str], alert: Alert, timeout_s: float) -> str:
    """Run the operator's command; empty where it ended well in time, else one sentence with the last that it said."""
    detach.become_subreaper()  # what it leaves behind is handed to us, to be ended here
    name = redact.redact(argv[0])
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**unmarked_environment(), **alert_environment(alert)},
            start_new_session=True,
        )
    except OSError as error:
        return f"the alert command {name} could not be started: {error.strerror or error}"
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(OSError):  # it need not read what it is told
        child.stdin.write(json.dumps(alert).encode("ascii") + b"\n")
        child.stdin.close()
    code, said = _wait(child, child.stdout.fileno(), time.monotonic() + timeout_s)
    _end_descendants()
    last = redact.redact((said.decode("utf-8", "replace").strip().splitlines() or [""])[-1][-300:])
    if code is None:
        return f"the alert command {name} did not end within {timeout_s:.0f} s and was ended"
    return f"the alert command {name} ended with {code}{': ' + last if last else ''}" if code else ""


def _wait(child: "subprocess.Popen[bytes]", output: int, deadline: float) -> Tuple[Optional[int], bytes]:
    """The exit code (None after the deadline) and the end of what it said; never waits for who inherited its output."""
    said = b""
    while True:
        code = child.poll()
        ready = select.select([output], [], [], 0 if code is not None else 0.05)[0]
        piece = os.read(output, 65536) if ready else b""
        said = (said + piece)[-_SAID_BYTES:]
        if code is not None and not piece:
            return code, said
        if time.monotonic() >= deadline:
            return code, said
        if ready and not piece:
            time.sleep(0.02)  # it has closed its output and goes on


def _end_descendants() -> None:
    def left() -> List[proctable.Process]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return [(p.pid, p.start_ticks) for p in proctable.descendants([os.getpid()], proctable.snapshot())]

    proctable.end_all(left, grace_s=_KILL_GRACE_S, kill_wait_s=_KILL_GRACE_S)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the alert to an address that nobody has named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, alert: Alert, timeout_s: float) -> str:
    """POST the alert as JSON; empty on a 2xx answer in time, else one sentence that shows the host only."""
    shown = redact.address(url)
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"the webhook {shown} is no http or https address"
    headers = {"Content-Type": "application/json", "User-Agent": "eagle3-runner"}
    user, _, host = parts.netloc.rpartition("@")
    if user:
        name, _, password = user.partition(":")
        pair = f"{urllib.parse.unquote(name)}:{urllib.parse.unquote(password)}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")
    target = urllib.parse.urlunsplit(parts._replace(netloc=host, fragment=""))

    def too_late(*_: Any) -> None:
        raise TimeoutError

    # The limit of a socket is for each read; the alarm is for all of it, names and a dripping answer included.
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        request = urllib.request.Request(target, json.dumps(alert).encode("ascii"), headers, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s) as answer:
            answer.read(65536)
        return ""
    except urllib.error.HTTPError as error:
        return f"the webhook {shown} answered {error.code}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # not its text: that may quote the address
        if isinstance(reason, (TimeoutError, socket.timeout)):
            return f"the webhook {shown} did not answer within {timeout_s:.0f} s"
        return f"the webhook {shown} cannot be reached: {getattr(reason, 'strerror', None) or type(reason).__name__}"
    except ValueError:
        return f"the webhook {shown} is not an address that can be asked"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
