"""A run, everything around it, and a way to hold it at a chosen moment so that one of its processes can be killed there.

The runner is the real one, in a copy whose entry wraps five of its functions: at the chosen moment they say so and wait. No
product code knows of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eagle3.runner import identity, proctable, rundir, state
from tests.runner.stand_ins import Serving
from tests.runner.support import ROOT, RUNNER, Channel, old_python, wait_for

ENTRY = """
import os, sys, time
from pathlib import Path
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])
from eagle3.runner import events, rundir, supervise
from eagle3.runner.services import records
from eagle3.runner.real_main import main

HOME = Path(os.environ["HOLD"])

def at(moment):
    if (HOME / "moment").read_text() != moment:
        return
    try:
        os.close(os.open(HOME / "reached", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    end = time.monotonic() + 30
    while not (HOME / "go").exists() and time.monotonic() < end:
        time.sleep(0.002)

def around(module, name, before=lambda *a: None, after=lambda *a: None):
    real = getattr(module, name)
    def wrapped(*args, **more):
        at(before(*args))
        result = real(*args, **more)
        at(after(*args))
        return result
    setattr(module, name, wrapped)

def is_attempt(path, *_):
    return Path(path).parent.name == "attempts"

def writes(path, content):
    name = Path(path).name
    if name == "starting.json" and "supervisor" not in content:
        return "launcher: starting"
    return {"started.json": "started"}.get(name)

around(
    rundir, "claim",
    lambda p, *_: "before claim" if is_attempt(p) else None,
    lambda p, *_: "after claim" if is_attempt(p) else None,
)
around(
    rundir, "write_json",
    lambda p, c, *_: "after spawn" if writes(p, c) == "started" else None,
    lambda p, c, *_: {"launcher: starting": "after starting", "started": "after started"}.get(writes(p, c)),
)
around(records, "write_yielded", after=lambda *_: "while yielding")
around(records, "write_restored", before=lambda *_: "while restoring")
around(supervise.Supervisor, "_end_descendants", before=lambda *_: "while ending")
around(events, "append", after=lambda r, a, kind, text: "while stopping" if kind == "stop" and "stopping now" in text else None)
if __name__ == "__main__":
    sys.exit(main())
"""

CONSOLE = """
import subprocess, sys
helper = subprocess.Popen(sys.argv[2:], stdin=-1, stdout=-1)
print(helper.pid, flush=True)
helper.stdin.write(sys.argv[1].encode() + b"\\n")
helper.stdin.flush()
for line in helper.stdout:
    print(line.decode(), end="", flush=True)
"""


def held_runner(folder: Path) -> Path:
    """A copy of the runner that can be held; the path of its folder."""
    home = folder / "eagle3" / "runner"
    shutil.copytree(RUNNER, home, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "eagle3/__init__.py", home.parent)
    (home / "__main__.py").rename(home / "real_main.py")
    (home / "__main__.py").write_text(ENTRY)
    return home


class World:
    """A console with a helper that launches, another helper that watches, and the run with a service that yields to it."""

    def __init__(self, folder: Path, runner: Path, workspace: Path, serving: Serving, moment: str) -> None:
        self.workspace = workspace
        self.run_dir = workspace / "runs" / "r"
        self.serving = serving
        self._hold = folder / "hold"
        self._hold.mkdir()
        (self._hold / "moment").write_text(moment)
        self.mark = f"600.{os.getpid()}{time.monotonic_ns()}"
        worker = f"""echo started >> starts
            (trap "" TERM; exec setsid sleep {self.mark}) &
            while [ ! -e end ]; do sleep 0.02; done"""
        wish = {**serving.wish, "consented_by": "ann", "consent": "at night", "grace_s": 1}
        self.request: dict[str, Any] = {
            "workspace": str(workspace),
            "run_id": "r",
            "spec_toml": "a = 1\n",
            "launch": {"argv": ["/bin/sh", "-c", worker], "grace_s": 0.2, "heartbeat_s": 0.2, "services": [wish]},
            "actor": "ann",
        }
        serving.start()
        env = {**os.environ, "HOLD": str(self._hold)}
        line = json.dumps({"id": 1, "verb": "launch", "args": self.request})
        helper = [old_python(), "-I", "-S", str(runner), "serve", "--marker", "@@"]
        self.helper = Channel(old_python(), "-I", "-S", str(runner), env={"HOLD": str(self._hold)})
        assert self.helper.ask("hello", actor="eve", workspace=str(workspace))["ok"]
        self.console = subprocess.Popen([sys.executable, "-S", "-c", CONSOLE, line, *helper], env=env, stdout=subprocess.PIPE)
        assert self.console.stdout is not None
        self._launcher = int(self.console.stdout.readline())

    def reached(self) -> bool:
        return (self._hold / "reached").exists()

    def go_on(self) -> None:
        (self._hold / "go").touch()

    def pid(self, role: str) -> int:
        """The process that plays ``role`` at this moment."""
        if role == "console":
            return self.console.pid
        if role == "launcher":
            return self._launcher
        if role == "helper":
            return self.helper.process.pid
        if role == "supervisor":
            starting = wait_for(lambda: rundir.read_object(self.run_dir / "attempts/1/starting.json").get("supervisor"))
            return int(starting["pid"])
        return wait_for(self.workers)[0]

    def workers(self) -> list[int]:
        """The shell of the run, alive: bears the marker, and is neither its supervisor nor its child."""
        found = proctable.marked(str(self.run_dir), 1)
        return [p.pid for p in found if proctable.command_line(p.pid)[:2] == ["/bin/sh", "-c"] and self._is_leader(p.pid)]

    def _is_leader(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == pid
        except ProcessLookupError:
            return False

    def left(self) -> list[str]:
        """Everything of the run that lives, its deaf child in its own session too."""
        table = proctable.snapshot()
        marked = {p.pid for p in proctable.marked(str(self.run_dir), 1, table)}
        deaf = {p.pid for p in table.values() if proctable.is_live(p) and self.mark in proctable.command_line(p.pid)}
        return [f"{pid} {proctable.name(pid)}" for pid in marked | deaf]

    def starts(self) -> int:
        """How often the worker was started."""
        file = self.run_dir / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def alive(self, file: str) -> bool:
        record = rundir.read_object(self.run_dir / "attempts/1" / file)
        return identity.alive(record.get("supervisor") or {})

    def described(self, channel: Channel) -> str:
        """The run's state by a helper, checked against what lives before and after the question."""
        # The supervisor before the question too: while it lives, a run without a worker is rightly "running".
        before, supervised = bool(self.workers()), self.alive("starting.json")
        [run] = channel.result("list", workspace=str(self.workspace))["runs"]
        after = bool(self.workers())
        if before and after:
            assert run["state"] in state.LIVE, (run["state"], run["state_text"])
        if not before and not after and not supervised and not self.alive("starting.json"):
            assert run["state"] not in ("running", "unsupervised", "stalled"), (run["state"], run["state_text"])
        return str(run["state"])

    def close(self) -> None:
        """Nothing of it outlives the test."""
        self.go_on()
        for process in (self.console, self.helper.process):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        for found in proctable.snapshot().values():
            if self.mark in " ".join(proctable.command_line(found.pid)):
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(found.pid, signal.SIGKILL)
