"""Whom a run tells: ``hooks`` of launch.json, as the spec's section ``alerts`` says it."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional

from eagle3.runner import redact
from eagle3.runner.errors import VerbError

KINDS = ("finish", "failure", "stop", "stall", "guard", "disk_low", "gpu_fault")
FINAL_KINDS = ("finish", "failure", "stop")
"""How an attempt ended: exactly one of them for each attempt."""


class Hooks(NamedTuple):
    """``command`` and ``webhook`` each may be empty; ``timeout_s`` is for each delivery by each of them."""

    command: List[str]
    webhook: str
    on: FrozenSet[str]
    timeout_s: float
    min_interval_s: float
    retry_s: float
    missing: str = ""
    """The secret with the webhook's address, where this process has not been given it."""


def hooks_of(launch: Dict[str, Any], secrets: Dict[str, str]) -> Optional[Hooks]:
    """What launch.json says of alerts, or None where nobody is to be told. ``secrets`` may hold the webhook's address."""
    found = launch.get("hooks")
    if not isinstance(found, dict):
        return None
    name = str(found.get("webhook_env") or "")
    command = [str(part) for part in found.get("command") or []]
    webhook = secrets.get(name, "") if name else str(found.get("webhook") or "")
    if not command and not webhook and not name:
        return None
    return Hooks(
        command=command,
        webhook=webhook,
        on=frozenset(str(kind) for kind in found.get("on") or KINDS),
        timeout_s=_number(found.get("timeout_s"), 20.0),
        min_interval_s=_number(found.get("min_interval_s"), 60.0),
        retry_s=_number(found.get("retry_s"), 5.0),
        missing=name if name and not webhook else "",
    )


def webhook_secret(launch: Dict[str, Any]) -> str:
    """The name of the secret that holds the webhook's address; it is the supervisor's and not for the worker."""
    found = launch.get("hooks")
    return str(found.get("webhook_env") or "") if isinstance(found, dict) else ""


def check_hooks(launch: Dict[str, Any], secrets: Dict[str, str]) -> None:
    """Raises VerbError("usage") that names what is wrong with the launch's hooks, before a run is made."""
    found = launch.get("hooks")
    if found is None:
        return
    if not isinstance(found, dict):
        raise VerbError("usage", "The launch's 'hooks' must be an object.", "Correct the section 'alerts' of the spec.")
    command = found.get("command") or []
    if not isinstance(command, list) or not all(isinstance(part, str) and "\0" not in part for part in command):
        raise VerbError("usage", "The alert command must be a list of strings.", "Correct alerts.command.")
    if command and shutil.which(os.path.expanduser(command[0])) is None:  # noqa: PTH111 - an unknown ~user stays as it is
        text = (
            f"The alert command {redact.redact(command[0])!r} cannot be run in this container: it is missing or not executable."
        )
        raise VerbError("usage", text, "Correct alerts.command.")
    webhook, name = str(found.get("webhook") or ""), str(found.get("webhook_env") or "")
    if name and name not in secrets:
        raise VerbError("usage", f"The webhook's address is the secret {name}, which was not given.", f"Give {name} as a secret.")
    address = secrets[name] if name else webhook
    if address and not address.startswith(("http://", "https://")):
        raise VerbError("usage", f"The webhook {redact.address(address)} is no http or https address.", "Correct it.")
    unknown = sorted(set(map(str, found.get("on") or [])) - set(KINDS))
    if unknown:
        raise VerbError("usage", f"There is no alert {unknown[0]!r}.", f"alerts.on takes {', '.join(KINDS)}.")


def _number(value: Any, default: float) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    return float(value) if usable else default
