"""What a launch says about services: which must yield, and who has agreed; and what is alive of them now."""

from __future__ import annotations

import pwd
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

from eagle3.runner import gpu, identity, proctable
from eagle3.runner.errors import VerbError
from eagle3.runner.identity import Stat
from eagle3.runner.services import servers, systemd

ASK = "Ask whoever runs it and write the consent into the spec's `services`, or stop it yourself."


class Live(NamedTuple):
    """A service of the plan that is alive now. ``process`` is None for a unit without a main process."""

    wish: Dict[str, Any]
    name: str
    process: Optional[Stat]
    since: Optional[float]
    user: str


def check(launch: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The plan's ``services``, well-formed. Raises VerbError("usage")."""
    wishes = launch.get("services") or []
    if not isinstance(wishes, list) or not all(isinstance(wish, dict) for wish in wishes):
        raise VerbError("usage", "The launch's 'services' must be a list of objects.")
    for wish in wishes:
        unit, process = str(wish.get("unit") or ""), str(wish.get("process") or "")
        if bool(unit) == bool(process):
            raise VerbError("usage", "A service is named by its unit or by its command line, one of the two.")
        if unit and not systemd.UNIT.fullmatch(unit):
            raise VerbError("usage", f"{unit!r} is not the name of a systemd unit.", "Give a name such as vllm.service.")
    return wishes


def has_consent(wish: Dict[str, Any]) -> bool:
    """Whether somebody has agreed, in words, that the service is stopped."""
    return bool(str(wish.get("consent") or "").strip() and str(wish.get("consented_by") or "").strip())


def live(wish: Dict[str, Any]) -> Optional[Live]:
    """The service as it is alive now, or None. Raises VerbError("usage") where the description fits several."""
    if wish.get("unit"):
        return _live_unit(wish, str(wish["unit"]))
    text = str(wish["process"])
    found = servers.matching(text)
    if len(found) > 1:
        pids = ", ".join(str(p.pid) for p in found)
        raise VerbError("usage", f"{text!r} fits several vLLM servers ({pids}).", "Give more of the command line of the one.")
    if not found:
        return None
    return Live(wish, f"vLLM server {found[0].pid} ({text})", found[0], servers.since(found[0]), user_of(found[0].pid))


def _live_unit(wish: Dict[str, Any], unit: str) -> Optional[Live]:
    try:
        properties = systemd.show(unit)
    except systemd.SystemdError as error:
        raise VerbError(
            "failed", f"The service {unit} cannot be asked for: {error}.", "Correct `services` in the spec."
        ) from error
    if not systemd.exists(properties):
        raise VerbError("usage", f"systemd knows no unit {unit}.", "Correct `services` in the spec.")
    if not systemd.is_live(properties):
        return None
    pid = systemd.main_pid(properties)
    return Live(wish, unit, identity.stat(pid) if pid else None, systemd.since(properties), properties.get("User") or "root")


def user_of(pid: int) -> str:
    """The login name of a process's owner, the number where there is no name, "?" where it is gone."""
    uid = proctable.owner(pid)
    if uid is None:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def require_consent(launch: Dict[str, Any]) -> None:
    """Raises VerbError("busy") that names what holds the device and may not be stopped; nothing is touched."""
    agreed: Set[int] = set()
    for wish in check(launch):
        found = live(wish)
        if found is None:
            continue
        may_yield(found)
        if found.process is not None:
            agreed.update(pid for pid, _ in servers.tree(found.process))
    if launch.get("device") == "cuda" and not launch.get("share_device"):
        _require_free_gpus(launch, agreed)


def may_yield(found: Live) -> None:
    """Raises VerbError for a service that may not be stopped: busy where nobody has agreed to it, permission for a server
    of another user, which is never touched and could not be restored."""
    if not has_consent(found.wish):
        raise VerbError("busy", f"{_told(found)} holds what the run needs, and nobody has agreed that it is stopped.", ASK)
    if not found.wish.get("unit") and found.process is not None:
        if not proctable.is_ours(found.process.pid):
            text = f"{_told(found)} belongs to another user, so it is not stopped."
            raise VerbError("permission", text, f"Ask {found.user} to stop it.")
        if servers.record(found.process) is None:
            raise VerbError("permission", f"{_told(found)} cannot be recorded, so it could not be started again.", "Stop it.")


def _told(found: Live) -> str:
    words = [found.name]
    if found.process is not None and str(found.process.pid) not in found.name:
        words.append(f"pid {found.process.pid}")
    words.append(f"user {found.user}")
    if found.since is not None:
        words.append(f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(found.since))}")
    return f"{words[0]} ({', '.join(words[1:])})"


def _require_free_gpus(launch: Dict[str, Any], agreed: Set[int]) -> None:
    """A GPU of the run in somebody's hands is a reason not to start. Pids that are not here do not count: inside a
    container the driver may name those of the host."""
    wanted = launch.get("gpus")
    report = gpu.report()
    if report["status"] == "unknown":  # a driver that hangs or hurries now does not block a run, but it is asked twice
        report = gpu.report()
    for card in report["gpus"]:
        if isinstance(wanted, list) and wanted and card["index"] not in wanted:
            continue
        for process in card["processes"]:
            pid = process["pid"]
            if pid not in agreed and process.get("used_bytes") and identity.stat(pid) is not None:
                size = f"{process['used_bytes'] / 2**30:.1f} GiB"
                text = f"GPU {card['index']} is held by pid {pid} of {user_of(pid)} ({size}): {proctable.name(pid)[:80]}."
                raise VerbError("busy", text, ASK + " `share_device` in the spec lets the run start beside it.")
