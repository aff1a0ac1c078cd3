"""Section "host": the machine, its limits, the login, and who else is there."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import resource
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.runner import cgroups, host, identity, proctable

SHELL_LIMIT_S = 5.0
STUCK_AFTER_S = 0.5
_UTMP = struct.Struct("<h2xi32s4s32s256s2h3i4i20s")
_UTMP_USER = 7
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """What ``runner.host`` knows of the machine and, beyond it, everything that was found to break runs."""
    shell = login_shell(str(wants.get("shell") or _shell()), SHELL_LIMIT_S * float(wants.get("patience") or 1.0))
    return {
        **host.facts(root),
        "oom_kills": cgroups.memory(root)["oom_kills"],
        "tasks": cgroups.processes(root),
        "libc": libc(),
        "shm": _space(Path(str(wants.get("shm") or "/dev/shm"))),
        "limits": limits(),
        "shell": shell,
        "proxy": proxies(),
        "sessions": sessions(root),
        "helpers": helpers(),
        "stuck": stuck(),
        "zombies": zombies(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def libc() -> str:
    """The C library and its version ("glibc 2.36"), or the loader's name where it is another one."""
    with contextlib.suppress(ValueError, OSError):
        found = os.confstr("CS_GNU_LIBC_VERSION")
        if found:
            return found
    return "musl" if any(Path("/lib").glob("ld-musl-*")) else " ".join(platform.libc_ver()).strip()


def limits() -> Dict[str, Optional[int]]:
    """The soft limits that a run inherits; None is no limit. ``memlock`` in bytes."""
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK}
    found = {name: resource.getrlimit(number)[0] for name, number in names.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def login_shell(shell: str, limit_s: float = SHELL_LIMIT_S) -> Dict[str, Any]:
    """What the login shell prints and how long it takes when it is asked, as sshd asks it, to do nothing."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("EAGLE3_") and key != "SHLVL"}
    ours, theirs = socket.socketpair()  # bash reads its start-up file when stdin is a socket, as under sshd
    begun = time.monotonic()
    with ours, theirs:
        try:
            child = subprocess.Popen(
                [shell, "-c", "exec true"],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=str(Path.home()),
                start_new_session=True,
            )
        except OSError as error:
            return {"path": shell, "error": f"the login shell {shell} cannot be run: {error.strerror}"}
        theirs.close()
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # what its start-up file waits for, too: it would stay after every look
            with contextlib.suppress(subprocess.TimeoutExpired):  # something that left the group may keep the pipes open
                child.communicate(timeout=0.5)
            return {"path": shell, "error": f"the login shell {shell} did not end within {limit_s:.0f} s"}
    noise = (out + err).decode("utf-8", "replace").strip()
    return {
        "path": shell,
        "took_s": round(time.monotonic() - begun, 4),
        "out_bytes": len(out),
        "err_bytes": len(err),
        "sample": noise[:200],
        "error": "",
    }


def proxies() -> Dict[str, str]:
    """The proxy variables that are set, with the host only: an address may hold a password. And ``no_proxy``."""
    found = {}
    for name in _PROXIES:
        value = os.environ.get(name) or os.environ.get(name.upper()) or ""
        if value:
            found[name] = value.rpartition("@")[2]
    found["no_proxy"] = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return found


def sessions(root: Path) -> List[Dict[str, Any]]:
    """Logins with a terminal, from utmp; containers often keep none."""
    result = []
    with contextlib.suppress(OSError):
        content = (root / "var/run/utmp").read_bytes()
        for at in range(0, len(content) - _UTMP.size + 1, _UTMP.size):
            kind, pid, line, _, name, where, *rest = _UTMP.unpack_from(content, at)
            if kind == _UTMP_USER:
                words = {"user": name, "line": line, "from": where}
                text = {key: value.split(b"\0")[0].decode("utf-8", "replace") for key, value in words.items()}
                result.append({"pid": pid, "since": rest[3], **text})
    return result


def helpers() -> List[Dict[str, Any]]:
    """The helper channels of other consoles: who watches this container besides us."""
    result = []
    now_s = host.uptime_s()
    for found in proctable.snapshot().values():
        if found.pid == os.getpid() or not proctable.is_live(found):
            continue
        words = proctable.command_line(found.pid)
        is_runner = any(part.endswith(("/runner.pyz", "/eagle3/runner")) for part in words)
        if is_runner and "serve" in words and "--marker" in words:
            age_s = now_s - found.start_ticks / identity.TICKS_PER_S
            orphan = found.ppid == 1
            result.append({"pid": found.pid, "age_s": round(age_s, 1), "user": owner(found.pid), "orphan": orphan})
    return result


def stuck(after_s: float = STUCK_AFTER_S) -> List[Dict[str, Any]]:
    """Processes in uninterruptible sleep at two looks ``after_s`` apart: they wait for a device, and KILL does not reach
    them. Kernel threads, which sleep so as a matter of course, are left out."""
    first = {p.pid: p.start_ticks for p in proctable.snapshot().values() if p.state == "D"}
    if not first:
        return []
    time.sleep(after_s)
    again = proctable.snapshot()
    held = [p for pid, p in again.items() if p.state == "D" and first.get(pid) == p.start_ticks]
    return [{"pid": p.pid, "name": proctable.name(p.pid)} for p in held if proctable.command_line(p.pid)]


def zombies() -> Dict[str, Any]:
    """Dead processes that nobody has waited for: ``{"count","parents":{name: count}}``."""
    table = proctable.snapshot()
    dead = [p for p in table.values() if p.state == "Z"]
    parents: Dict[str, int] = {}
    for found in dead:
        name = f"{proctable.name(found.ppid)[:60]} (pid {found.ppid})"
        parents[name] = parents.get(name, 0) + 1
    most = sorted(parents.items(), key=lambda entry: -entry[1])
    return {"count": len(dead), "parents": dict(most[:10])}


def owner(pid: int) -> str:
    """The user of a process, by name where it has one; empty where it is gone."""
    try:
        number = (identity.PROC / str(pid)).stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _shell() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def _space(place: Path) -> Dict[str, Any]:
    try:
        status = os.statvfs(place)
    except OSError as error:
        return {"path": str(place), "error": f"{place}: {error.strerror}"}
    size = status.f_frsize
    return {"path": str(place), "total_bytes": status.f_blocks * size, "free_bytes": status.f_bavail * size, "error": ""}
