"""One question to one interpreter: a process of its own, a limit, bounded output, and nothing of it left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from eagle3.runner import proctable

MARK = "@eagle3 "
"""What the one line of an answer begins with; everything else that a library prints is its own affair."""

SCRIPTS = Path(__file__).resolve().parent / "scripts"

_TAIL_BYTES = 1 << 20
_OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1", "NO_COLOR": "1", "TQDM_DISABLE": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


class Outcome(NamedTuple):
    """``answer`` is the last marked line of a process that ended within its limit, else None, and ``said`` is then the one
    line that says why. ``lines`` are all marked lines, however it ended."""

    answer: Optional[Dict[str, Any]]
    said: str
    timed_out: bool
    seconds: float
    lines: List[Dict[str, Any]]


def script(
    python: str,
    name: str,
    asked: Dict[str, Any],
    *,
    limit_s: float,
    cwd: Path,
    env: Optional[Dict[str, str]] = None,
    renewed: bool = False,
) -> Outcome:
    """Run ``scripts/<name>.py`` under ``python`` with ``asked`` as its argument."""
    return ask([python, str(SCRIPTS / f"{name}.py"), json.dumps(asked)], limit_s=limit_s, cwd=cwd, env=env, renewed=renewed)


def ask(
    command: List[str],
    *,
    limit_s: float,
    cwd: Path,
    env: Optional[Dict[str, str]] = None,
    grace_s: float = 0.0,
    renewed: bool = False,
) -> Outcome:
    """Run ``command`` and take its marked line. stdin is empty: a question such as "run the model's own code?" ends it
    instead of waiting for ever. At the limit it gets TERM, after ``grace_s`` it is killed with all its descendants.
    With ``renewed`` each marked line gives it the limit anew. Never raises."""
    begun = time.monotonic()
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=str(cwd),
            env={**os.environ, **_OFFLINE, **(env or {})},
            start_new_session=True,
        )
    except OSError as error:
        said = f"{command[0]} cannot be started: {error.strerror or error}"
        return Outcome(None, said, False, time.monotonic() - begun, [])
    out, err = _Tail(child.stdout), _Tail(child.stderr)
    timed_out = False
    try:
        timed_out = not _waited(child, limit_s, out if renewed else None)
    finally:
        _end(child, grace_s if child.poll() is None else 0.0)
    out.join()
    err.join()
    seconds = time.monotonic() - begun
    lines = _marked(out.text())
    said = last_words(err.text()) or last_words(out.text())
    if timed_out:
        text = f"gave no answer in {limit_s:.0f} s" + (f"; its last line: {said}" if said else "")
        return Outcome(None, text, True, seconds, lines)
    if lines:
        return Outcome(lines[-1], "", False, seconds, lines)
    code = child.returncode
    how = f"ended with code {code}" if code is None or code >= 0 else f"ended by {_signal_name(-code)}"
    return Outcome(None, f"{how}: {said}" if said else f"{how} and said nothing", False, seconds, [])


def _waited(child: "subprocess.Popen[bytes]", limit_s: float, out: "Optional[_Tail]") -> bool:
    """Whether the child ended within its limit, which counts from its last marked line where ``out`` is given."""
    deadline, seen = time.monotonic() + limit_s, 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return child.poll() is not None
        try:
            child.wait(left if out is None else min(left, 0.2))
            return True
        except subprocess.TimeoutExpired:
            count = 0 if out is None else len(_marked(out.text()))
            if count > seen:
                deadline, seen = time.monotonic() + limit_s, count


def _marked(text: str) -> List[Dict[str, Any]]:
    found = []
    for line in text.splitlines():
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # cut off in the middle: no answer
                answer = json.loads(line[len(MARK) :])
                if isinstance(answer, dict):
                    found.append(answer)
    return found


def last_words(text: str) -> str:
    """The last line with something in it, at most 300 characters: of a traceback the one that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(MARK)]
    return lines[-1][:300] if lines else ""


class _Tail:
    """Reads a pipe to its end and keeps what came last."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed under our hands: what came before counts
            while True:
                part = self._pipe.read1(65536)
                if not part:
                    return
                self._kept = (self._kept + part)[-_TAIL_BYTES:]

    def join(self) -> None:
        self._thread.join(2.0)

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


def _end(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """End what is left of ``child``, whose group or descendants may outlive it."""
    family = [(p.pid, p.start_ticks) for p in proctable.descendants([child.pid], proctable.snapshot())]
    if child.poll() is None and grace_s > 0:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # then the hard way
            child.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in family:
        proctable.send(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands; it is given up
        child.wait(5.0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
