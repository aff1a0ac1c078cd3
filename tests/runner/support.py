"""What the runner's tests share: an old interpreter, polling with a deadline, a client of the helper channel."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from eagle3.runner import proctable, rundir, state

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "eagle3" / "runner"
T = TypeVar("T")


@functools.cache
def old_python() -> str:
    """A Python 3.8, the oldest that the runner promises to run under; without one, the interpreter of the tests."""
    named = shutil.which("python3.8")
    # A version manager's stand-in on the PATH works only for whoever chose a version; what it stands for lies beside it.
    managed = sorted(Path(named).parent.parent.glob("versions/3.8.*/bin/python")) if named else []
    candidates = [*managed, *([named] if named else [])]
    return str(next((c for c in candidates if _is_python_38(str(c))), sys.executable))


def _is_python_38(path: str) -> bool:
    command = [path, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 8))"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def wait_for(what: Callable[[], T], *, deadline_s: float = 60.0) -> T:
    """The first true answer of ``what``; fails where there is none within ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def plan(script: str, **more: Any) -> dict[str, Any]:
    """A launch whose worker is this interpreter running ``script``; the run directory is its first argument."""
    return {"argv": [sys.executable, "-S", "-c", script, "{run_dir}"], "grace_s": 0.5, **more}


def shell(script: str, **more: Any) -> dict[str, Any]:
    """A launch whose worker is a shell."""
    return {"argv": ["/bin/sh", "-c", script], "grace_s": 0.5, **more}


def summary(run_dir: Path) -> dict[str, Any]:
    return state.summary(run_dir, time.time())


def state_is(run_dir: Path, *words: str) -> Callable[[], bool]:
    return lambda: summary(run_dir)["state"] in words


def wait_end(run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    """The attempt's ``exit.json`` when it is there."""
    found: dict[str, Any] = wait_for(lambda: rundir.read_json(run_dir / "attempts" / str(attempt) / "exit.json"))
    return found


def started(run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = rundir.read_json(run_dir / "attempts" / str(attempt) / "started.json")
    return found


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file as the product reads them, none where it is missing. A line that another process is just writing
    is none yet, and two that write at the same moment may leave an empty one between theirs."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line]


def events(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    """The run's events of these kinds, in the order in which they were written; all of them where none is named."""
    return [row for row in rows(run_dir / "events.jsonl") if not kinds or row["kind"] in kinds]


def files_with(text: str, place: Path) -> list[str]:
    """The files below ``place`` that hold the text. One that goes away meanwhile (a heartbeat's temporary file) holds nothing."""
    found = []
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(str(path.relative_to(place)))
    return found


def wait_gone(run_dir: Path, attempt: int = 1) -> None:
    """Until the attempt's supervisor has ended too: it has things to put away and to tell after ``exit.json``."""
    wait_for(lambda: not proctable.marked(str(run_dir), attempt))


def wait_programs(run_dir: Path, *programs: str, attempt: int = 1) -> set[int]:
    """The pids of the attempt's processes, its supervisor left out, once they are exactly these programs.

    A child that was only forked has its parent's command line and environment, and in the midst of its exec none at all; and
    the `touch` that made the file that a test waits for may still be there.
    """

    def found() -> set[int]:
        own = started(run_dir, attempt)["supervisor"]["pid"]
        pids = {p.pid for p in proctable.marked(str(run_dir), attempt)} - {own}
        names = sorted(Path((proctable.command_line(pid) or [""])[0]).name for pid in pids)
        return pids if names == sorted(programs) else set()

    return wait_for(found)


def kill_supervisor(run_dir: Path) -> None:
    """What an out-of-memory killer does to it."""
    supervisor = started(run_dir)["supervisor"]
    os.kill(supervisor["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unsupervised", "unknown"))


def end_everything(workspace: Path) -> None:
    """No process of a test outlives it, whatever the test broke."""
    for run_dir in rundir.runs(workspace):
        for attempt in state.attempts(run_dir):

            def left(run_dir: Path = run_dir, attempt: int = attempt) -> list[proctable.Process]:
                return [(p.pid, p.start_ticks) for p in proctable.marked(str(run_dir), attempt)]

            proctable.end_all(left, grace_s=0)


class Channel:
    """The other end of ``serve``, in a process of its own."""

    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*command, "serve", "--marker", "@@"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self._id = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"@@"), line
        reply: dict[str, Any] = json.loads(line[2:])
        return reply

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        """The reply, which must be to this question."""
        self._id += 1
        self.send(json.dumps({"id": self._id, "verb": verb, "args": args}).encode())
        reply = self.receive()
        assert reply["id"] == self._id
        return reply

    def result(self, verb: str, **args: Any) -> dict[str, Any]:
        reply = self.ask(verb, **args)
        assert reply["ok"], reply
        found: dict[str, Any] = reply["result"]
        return found

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
