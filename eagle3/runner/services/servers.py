"""vLLM servers without a unit: found in the process table, written down so that they can be started again, ended, started."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.runner import host, identity, proctable, vllm
from eagle3.runner.identity import PROC, Stat

KILL_GRACE_S = 5.0
SETTLE_S = 0.5
"""A command that cannot even begin ends within this."""


def found(table: Optional[Dict[int, Stat]] = None) -> List[Stat]:
    """The vLLM servers of this machine that belong to no run, the oldest first; of several nested processes the outermost."""
    table = table if table is not None else proctable.snapshot()
    serving = {p.pid: p for p in table.values() if proctable.is_live(p) and vllm.is_server(proctable.command_line(p.pid))}
    outermost = [p for p in serving.values() if p.ppid not in serving and not proctable.environment(p.pid).get("EAGLE3_RUN_ID")]
    return sorted(outermost, key=lambda p: p.start_ticks)


def matching(text: str, table: Optional[Dict[int, Stat]] = None) -> List[Stat]:
    """Those of ``found`` whose command line contains ``text``."""
    return [p for p in found(table) if text in " ".join(proctable.command_line(p.pid))]


def since(process: Stat) -> float:
    """When a process was started, in Unix seconds."""
    return time.time() - host.uptime_s() + process.start_ticks / identity.TICKS_PER_S


def record(process: Stat) -> Optional[Dict[str, Any]]:
    """What is needed to start the process again; it holds secrets. None where it may not be read (another user's).

    ``argv`` and ``environ`` are text with surrogates for bytes that are not UTF-8; ``outputs`` the regular files behind
    its standard output and error, empty for terminals, pipes and sockets.
    """
    home = PROC / str(process.pid)
    try:
        argv = (home / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        environ = [pair for pair in (home / "environ").read_bytes().split(b"\0") if b"=" in pair]
        cwd = (home / "cwd").readlink() if hasattr(Path, "readlink") else os.readlink(str(home / "cwd"))  # noqa: PTH115
    except OSError:
        return None
    if not identity.is_running(process.pid, process.start_ticks) or not environ:
        return None
    return {
        "argv": [os.fsdecode(part) for part in argv],
        "environ": [os.fsdecode(pair) for pair in environ],
        "cwd": str(cwd),
        "outputs": [_regular_file(home / "fd" / number) for number in ("1", "2")],
        "umask": _umask(home),
    }


def _umask(home: Path) -> int:
    try:
        lines = (home / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0o022)


def _regular_file(link: Path) -> str:
    try:
        if not stat.S_ISREG(link.stat().st_mode):
            return ""
        target = os.readlink(str(link))  # noqa: PTH115 - Path.readlink came with 3.9
        return target if Path(target).exists() else ""
    except OSError:
        return ""


def tree(process: Stat) -> List[proctable.Process]:
    """A server and its descendants: what must be gone when it has ended."""
    table = proctable.snapshot()
    return [(p.pid, p.start_ticks) for p in [process, *proctable.descendants([process.pid], table)]]


def end(processes: List[proctable.Process], grace_s: float) -> List[proctable.Process]:
    """TERM to the server (the first), grace, TERM to what is left of its tree, KILL; returns the survivors."""
    known = set(processes)

    def left() -> List[proctable.Process]:
        alive = {p for p in known if identity.is_running(*p)}
        known.update((p.pid, p.start_ticks) for p in proctable.descendants([pid for pid, _ in alive], proctable.snapshot()))
        return sorted(p for p in known if identity.is_running(*p))

    leader = processes[0]
    left()
    proctable.send(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while identity.is_running(*leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    return proctable.end_all(left, grace_s=min(KILL_GRACE_S, grace_s))


def running_again(known: Dict[str, Any]) -> Optional[Stat]:
    """A live process of this user with the very command line and folder of a record: it was started again already."""
    for process in proctable.snapshot().values():
        if proctable.is_live(process) and proctable.is_ours(process.pid):
            other = record(process)
            if other is not None and (other["argv"], other["cwd"]) == (known["argv"], known["cwd"]):
                return process
    return None


def start(known: Dict[str, Any], log: Path) -> Stat:
    """Start a server as it was recorded, in a session of its own; where its output went to no file it goes to ``log``.

    Raises OSError where it cannot be started or ends at once.
    """
    environ = dict(pair.split("=", 1) for pair in known["environ"])
    outputs = [os.open(name or log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) for name in known["outputs"]]
    own_umask = os.umask(int(known.get("umask", 0o022)))
    try:
        child = subprocess.Popen(
            known["argv"],
            cwd=known["cwd"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
        )
    finally:
        os.umask(own_umask)
        for descriptor in outputs:
            os.close(descriptor)
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise ChildProcessError(f"it ended at once with exit code {child.returncode}")
        time.sleep(0.05)
    process = identity.stat(child.pid)
    child.returncode = 0  # it is not ours to wait for: no complaint when this object goes
    if process is None:
        raise ChildProcessError("it ended at once")
    return process
