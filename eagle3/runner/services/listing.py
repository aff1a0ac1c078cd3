"""The verb ``service``: every vLLM of the machine, by systemd unit or from the process table, as it may be shown."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Set

from eagle3.runner import identity, proctable, redact, vllm
from eagle3.runner.services import plan, servers, systemd

MAX_VARIABLES = 300
MAX_VALUE = 500


def services(pattern: str = "vllm*") -> Dict[str, Any]:
    """``{"systemd","services"}``: empty text where systemd answers, else why not; each service in the shape of
    ``core.records.Service``. ``pattern`` chooses the units, as ``systemctl`` takes it."""
    found: List[Dict[str, Any]] = []
    why = ""
    try:
        found = [_unit(name) for name in systemd.units(pattern)]
    except systemd.SystemdError as error:
        why = str(error)
    table = proctable.snapshot()
    known: Set[int] = set()
    for service in found:
        if service["pid"]:
            known.add(service["pid"])
            known.update(p.pid for p in proctable.descendants([service["pid"]], table))
    serving = [p for p in table.values() if proctable.is_live(p) and vllm.is_server(proctable.command_line(p.pid))]
    pids = {p.pid for p in serving}
    for process in sorted(serving, key=lambda p: p.start_ticks):
        if process.pid not in known and process.ppid not in pids:
            found.append(_process(process))
    return {"systemd": why, "services": found}


def _unit(name: str) -> Dict[str, Any]:
    properties: Dict[str, str] = {}
    text = ""
    try:
        properties = systemd.show(name)
    except systemd.SystemdError as error:
        text = str(error)
    pid = systemd.main_pid(properties)
    process = identity.stat(pid) if pid else None
    argv = (proctable.command_line(pid) if process else []) or systemd.command(properties)
    env = (proctable.environment(pid) if process else {}) or systemd.environment(properties)
    active, sub, result = (properties.get(key, "") for key in ("ActiveState", "SubState", "Result"))
    if result not in ("", "success"):
        text = f"its last result: {result}"
    return {
        "kind": "unit",
        "name": name,
        "unit": name,
        "pid": pid or None,
        "user": plan.user_of(pid) if process else properties.get("User") or "root",
        "state": f"{active} ({sub})" if sub else active or "unknown",
        "live": systemd.is_live(properties),
        "since": systemd.since(properties),
        "url": _url(argv),
        "command": redact.command(argv, redact.secret_values(env)),
        "environment": _shown(env),
        "run_id": "",
        "text": text,
    }


def _process(process: identity.Stat) -> Dict[str, Any]:
    argv, env = proctable.command_line(process.pid), proctable.environment(process.pid)
    return {
        "kind": "process",
        "name": f"vLLM server {process.pid}",
        "unit": "",
        "pid": process.pid,
        "user": plan.user_of(process.pid),
        "state": "running",
        "live": True,
        "since": servers.since(process),
        "url": _url(argv),
        "command": redact.command(argv, redact.secret_values(env)),
        "environment": _shown(env),
        "run_id": env.get("EAGLE3_RUN_ID", ""),
        "text": "" if env else "its environment may not be read by this user",
    }


def _url(argv: List[str]) -> str:
    with contextlib.suppress(ValueError):  # a port that is no number
        return vllm.serving_url(argv) or ""
    return ""


def _shown(env: Dict[str, str]) -> Dict[str, str]:
    shown = sorted(redact.environment(env).items())[:MAX_VARIABLES]
    return {name: value if len(value) <= MAX_VALUE else value[:MAX_VALUE] + "…" for name, value in shown}
