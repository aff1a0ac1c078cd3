"""Stand-ins for what cannot be in a test: a vLLM server that only sleeps, and a systemd of one script with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.runner import identity, proctable
from tests.runner.support import wait_for

SECRET = "hf_SECRETsecretSECRETsecret"

SERVER = """
import os, signal, sys, time
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--engine" in sys.argv:  # a child in a session of its own that is deaf to TERM, as an engine can be
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(1)
        while True:
            time.sleep(600)
if "--kept" in sys.argv:  # who keeps it alive starts the next one first: it ends by TERM once that one serves
    def make_way(*_):
        open(os.environ["STARTS"] + ".told", "w").close()
        while len(open(os.environ["STARTS"]).readlines()) < 2:
            time.sleep(0.01)
        os._exit(0)
    signal.signal(signal.SIGTERM, make_way)
starts = open(os.environ["STARTS"], "a")
if "--user" in sys.argv:
    os.setuid(int(sys.argv[sys.argv.index("--user") + 1]))
with starts:
    starts.write(f"{os.getpid()} {os.getcwd()}\\n")
print("serving", flush=True)
while True:
    time.sleep(600)
"""

SYSTEMCTL = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
home = Path(__file__).parent / "units"
words = [w for w in sys.argv[1:] if not w.startswith("--")]
verb, names = words[0], words[1:]

def read(name):
    unit = home / f"{name}.json"
    return json.loads(unit.read_text()) if unit.exists() else None

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def write(name, unit):
    (home / f"{name}.new").write_text(json.dumps(unit))
    (home / f"{name}.new").rename(home / f"{name}.json")

if verb == "list-units":
    found = [f.name[:-5] for f in sorted(home.glob("*.json"))]
    if "--output=json" in sys.argv and not (home / "old").exists():
        print(json.dumps([{"unit": name, "load": "loaded"} for name in found]))
    else:
        for name in found:
            print(f"{name} loaded active running a server")
elif verb == "show":
    unit = read(names[0])
    if unit is None:
        print(f"Id={names[0]}\\nLoadState=not-found\\nActiveState=inactive\\nMainPID=0")
    else:
        up = alive(unit["pid"])
        print(f"Id={names[0]}\\nLoadState=loaded\\nActiveState={'active' if up else 'inactive'}")
        print(f"SubState={'running' if up else 'dead'}\\nResult=success\\nUser=\\nMainPID={unit['pid'] if up else 0}")
        print(f"ExecStart={{ path={unit['argv'][0]} ; argv[]={' '.join(unit['argv'])} ; ignore_errors=no ; start_time=[n/a] }}")
        print(f"Environment=HF_TOKEN=x PLAIN=y\\nActiveEnterTimestampMonotonic={int(unit['at'] * 1e6)}")
        print(f"InactiveEnterTimestampMonotonic={int(unit['at'] * 1e6)}")
elif verb == "stop":
    unit = read(names[0])
    if alive(unit["pid"]):
        os.kill(unit["pid"], signal.SIGTERM)
    while alive(unit["pid"]):
        time.sleep(0.01)
elif verb == "start":
    if (home / "broken").exists():
        sys.exit("Failed to start: Unit has a bad unit file setting.")
    unit = read(names[0])
    child = subprocess.Popen(unit["argv"], env=unit["env"], cwd="/", stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
    write(names[0], {**unit, "pid": child.pid, "at": time.clock_gettime(time.CLOCK_MONOTONIC)})
else:
    sys.exit(f"Unknown command verb {verb}")
"""


class Serving:
    """One stand-in for a vLLM server, and what becomes of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "vllm/entrypoints/openai/api_server.py"
        self.program.parent.mkdir(parents=True)
        self.program.write_text(SERVER)
        self.wish = {"process": str(self.program)}
        self.starts = folder / "starts"
        self.log = folder / "server.log"
        self.env = {"PATH": os.environ["PATH"], "STARTS": str(self.starts), "HF_TOKEN": SECRET, "PLAIN": "plain"}

    def argv(self, *more: str) -> list[str]:
        return [sys.executable, "-S", str(self.program), "--port", "8123", "--api-key", SECRET, *more]

    def start(self, *more: str) -> identity.Identity:
        count = len(self.started())
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                self.argv(*more), env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        wait_for(lambda: len(self.started()) > count)
        return identity.of(child.pid)

    def started(self) -> list[str]:
        """A line for each time that it was started."""
        return self.starts.read_text().splitlines() if self.starts.exists() else []

    def alive(self) -> list[int]:
        """The pids of the servers that live now, engines left out."""
        table = proctable.snapshot()
        found = [p for p in table.values() if proctable.is_live(p) and str(self.program) in proctable.command_line(p.pid)]
        pids = {p.pid for p in found}
        return sorted(p.pid for p in found if p.ppid not in pids)

    def end(self) -> None:
        """No process of it outlives the test."""
        for process in proctable.snapshot().values():
            if str(self.program) in proctable.command_line(process.pid):
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    found = Serving(tmp_path / "server")
    yield found
    found.end()


class Systemd:
    """``systemctl`` on the PATH: one script, whose units are real processes."""

    def __init__(self, folder: Path) -> None:
        self.units = folder / "units"
        self.units.mkdir(parents=True)
        program = folder / "systemctl"
        program.write_text(f"#!{sys.executable} -S\n{SYSTEMCTL}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.program = program

    def add(self, name: str, serving: Serving) -> None:
        unit = {"argv": serving.argv(), "env": serving.env, "pid": 0, "at": 1.0}
        (self.units / f"{name}.json").write_text(json.dumps(unit))

    def __call__(self, *words: str) -> str:
        return subprocess.run([str(self.program), *words], check=True, capture_output=True, text=True, timeout=60).stdout

    def pid(self, name: str) -> int:
        return int(json.loads((self.units / f"{name}.json").read_text())["pid"])


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    found = Systemd(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.program.parent}{os.pathsep}{os.environ['PATH']}")
    return found
