"""Section "vllm": every server that is known of, what its command line says it is, and whether its tokens move."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import host as machine
from eagle3.runner import identity, proctable, rundir, vllm, vllm_metrics
from eagle3.runner.facts import host
from eagle3.runner.probe import list_runs

WATCH_S = 1.5
"""Between the two readings of a server's counters."""
DEADLINE_S = 2.0
_FLAGS = ("--enforce-eager", "--trust-remote-code", "--enable-prefix-caching", "--no-enable-prefix-caching")
_VALUES = ("--model", "--served-model-name", "--max-model-len", "--dtype", "--tensor-parallel-size", "--gpu-memory-utilization")
_JSON = ("--speculative-config", "--kv-transfer-config")


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """``{"servers":[…],"port":{…}}``. Each server has what the overview knows and, beyond it, ``arguments``, ``kind``,
    ``process``, ``unit``, ``version``, ``metrics`` and two readings of its counters, ``watch_s`` apart."""
    urls = [str(url) for url in wants.get("urls") or []]
    workspace = str(wants.get("workspace") or "~/eagle3")
    try:
        summaries = list_runs(workspace)
    except OSError:
        summaries = []  # a workspace that may not be read has no runs that we could tell; section disk says so
    live = vllm.live(rundir.runs(workspace) if summaries else [], summaries)
    servers = vllm.servers(live, urls)
    watch_s, patience = float(wants.get("watch_s") or WATCH_S), float(wants.get("patience") or 1.0)
    more = machine.in_parallel(
        [functools.partial(_more, server, watch_s) for server in servers], watch_s + (2 * DEADLINE_S + 1.0) * patience
    )
    named = {_plain(url) for url in urls}
    return {
        "servers": [
            {**server, **(extra or {"metrics": {"error": "it did not answer in time"}}), "named": _plain(server["url"]) in named}
            for server, extra in zip(servers, more)
        ],
        "port": port(int(wants.get("port") or 0)),
        "watch_s": watch_s,
    }


def arguments(words: List[str]) -> Dict[str, Any]:
    """What a server's command line says, by option name without dashes. Old and new spellings (``_`` or ``-``) are the same;
    a JSON value is read, or kept as text under ``unreadable``. Only known options are taken: others may hold secrets."""
    found: Dict[str, Any] = {}
    unreadable: List[str] = []
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        key = key.replace("_", "-") if key.startswith("--") else key
        key = "--tensor-parallel-size" if key == "-tp" else key
        following = words[place + 1] if place + 1 < len(words) else ""
        value = value if equals else following
        name = key.lstrip("-")
        if key in _FLAGS:
            found[name] = True
        elif key in _VALUES:
            found[name] = value
        elif key in _JSON:
            try:
                found[name] = json.loads(value)
            except ValueError:
                unreadable.append(f"{key} {value}"[:200])
        elif word == "serve" and place and Path(words[place - 1]).name == "vllm" and not following.startswith("-"):
            found.setdefault("model", following)
    if found.pop("no-enable-prefix-caching", False):
        found["enable-prefix-caching"] = False
    if unreadable:
        found["unreadable"] = unreadable
    return found


def kind(given: Dict[str, Any]) -> str:
    """ "extract", "draft" (speculating), or "plain", as the arguments say."""
    speculative = given.get("speculative-config")
    transfer = given.get("kv-transfer-config")
    method = str(speculative.get("method", "")) if isinstance(speculative, dict) else ""
    connector = str(transfer.get("kv_connector", "")) if isinstance(transfer, dict) else ""
    if method == "extract_hidden_states" or "HiddenStates" in connector:
        return "extract"
    return "draft" if method or isinstance(speculative, dict) else "plain"


def port(number: int) -> Dict[str, Any]:
    """Whether the fixed port that a run would take is free; ``{}`` where it takes any."""
    if not number:
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            return {"number": number, "free": False, "why": error.strerror or str(error), "pid": _listener(number)}
    return {"number": number, "free": True, "why": "", "pid": None}


def _more(server: Dict[str, Any], watch_s: float) -> Dict[str, Any]:
    pid = server.get("pid")
    words = proctable.command_line(pid) if pid else []
    given = arguments(words)
    extra: Dict[str, Any] = {
        "arguments": given,
        "kind": kind(given) if words else "",
        "process": _process(pid),
        "unit": _unit(pid),
        "version": "",
        "metrics": {"error": ""},
        "before": {},
        "after": {},
    }
    if server.get("health") != "ok":
        return extra
    base = str(server["url"]).rstrip("/")
    first, error = _counters(base)
    extra["metrics"], extra["before"] = {"error": error}, first
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # an old server does not say; nothing depends on it
        status, body = vllm.get(f"{base}/version", DEADLINE_S)
        extra["version"] = str(json.loads(body.decode("utf-8"))["version"]) if status == 200 else ""
    if not error:
        time.sleep(watch_s)
        extra["after"], extra["metrics"]["error"] = _counters(base)
    return extra


def _counters(base: str) -> Tuple[Dict[str, Any], str]:
    """Tokens so far and requests now, summed over engines, and what is wrong with ``/metrics``."""
    try:
        status, body = vllm.get(f"{base}/metrics", DEADLINE_S)
    except (OSError, ValueError) as error:
        return {}, f"/metrics does not answer: {error}"
    if status != 200:
        return {}, f"/metrics answers {status}"
    found = vllm_metrics.load(body.decode("utf-8", "replace"))
    return (found, "") if "running" in found else (found, "/metrics has none of vLLM's own figures")


def _process(pid: Optional[int]) -> Dict[str, Any]:
    found = identity.stat(pid) if pid else None
    if found is None or pid is None:
        return {}
    age_s = machine.uptime_s() - found.start_ticks / identity.TICKS_PER_S
    return {"state": found.state, "user": host.owner(pid), "age_s": round(age_s, 1), "rss_bytes": found.rss_bytes}


def _unit(pid: Optional[int]) -> Dict[str, Any]:
    """The systemd unit that the process belongs to, with its restarts; ``{}`` for none."""
    if not pid:
        return {}
    name = ""
    with contextlib.suppress(OSError):
        for line in (identity.PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            for part in line.split("/"):
                if part.endswith(".service") and not part.startswith(("user@", "ssh", "containerd", "docker")):
                    name = part
    if not name:
        return {}
    return {"name": name, **restarts(name)}


def restarts(name: str) -> Dict[str, Any]:
    """How often systemd has started the unit anew, and its state; ``{}`` where systemctl does not answer."""
    command = ["systemctl", "show", name, "-p", "NRestarts,SubState,Result"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = dict(line.partition("=")[::2] for line in done.stdout.decode("utf-8", "replace").splitlines() if "=" in line)
    count = pairs.get("NRestarts", "")
    return {
        "restarts": int(count) if count.isdigit() else None,
        "state": pairs.get("SubState", ""),
        "result": pairs.get("Result", ""),
    }


def _listener(number: int) -> Optional[int]:
    """The process that listens on a port of this machine, where it is one that we may look into."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (identity.PROC / "net" / table).read_text(encoding="ascii", errors="replace").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == number:
                    inodes.add(f"socket:[{fields[9]}]")
    for entry in identity.PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or gone
                for handle in (entry / "fd").iterdir():
                    with contextlib.suppress(OSError):  # closed meanwhile
                        if os.readlink(handle) in inodes:  # noqa: PTH115 - Path.readlink came with Python 3.9
                            return int(entry.name)
    return None


def _plain(url: str) -> str:
    return url.rstrip("/").replace("localhost", "127.0.0.1")
