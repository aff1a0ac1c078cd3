"""systemd units by ``systemctl``: which there are, what is known of one, stop, start. Nothing here needs root to look."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from typing import Any, Dict, List

LOOK_DEADLINE_S = 5.0
START_DEADLINE_S = 120.0
LIVE_STATES = ("active", "activating", "reloading", "deactivating")

UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@\\-]{0,250}")
"""What a unit may be called here; use ``fullmatch``."""

_PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecStart", "Environment", "User", "FragmentPath",
    "ActiveEnterTimestampMonotonic", "InactiveEnterTimestampMonotonic",
)  # fmt: skip
_ARGV = re.compile(r"argv\[\]=(.*?) ; ", re.DOTALL)


class SystemdError(Exception):
    """systemctl is missing, refuses, or does not answer; the text is one sentence."""


def _systemctl(*arguments: str, deadline_s: float) -> str:
    program = shutil.which("systemctl")
    if program is None:
        raise SystemdError("there is no systemd here (no systemctl)")
    # Without a run's marker: what a stand-in for systemd starts must not be taken for a process of the run.
    env = {key: value for key, value in os.environ.items() if not key.startswith("EAGLE3_")}
    try:
        done = subprocess.run(
            [program, "--no-pager", "--no-ask-password", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**env, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
            timeout=deadline_s,
        )
    except subprocess.TimeoutExpired as error:
        raise SystemdError(f"systemctl {arguments[0]} did not end within {deadline_s:.0f} s") from error
    except OSError as error:
        raise SystemdError(f"systemctl cannot be run: {error.strerror or error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SystemdError(f"systemctl {arguments[0]}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def units(pattern: str = "vllm*") -> List[str]:
    """The names of the loaded service units that fit ``pattern``. Raises SystemdError."""
    command = ["list-units", "--all", "--type=service"]
    answer = _systemctl(*command, "--output=json", "--", pattern, deadline_s=LOOK_DEADLINE_S)
    with contextlib.suppress(ValueError, TypeError, KeyError):  # before systemd 246 it prints a table all the same
        return [str(unit["unit"]) for unit in json.loads(answer)]
    table = _systemctl(*command, "--plain", "--no-legend", "--", pattern, deadline_s=LOOK_DEADLINE_S)
    return [line.split()[0] for line in table.splitlines() if line.strip()]


def show(unit: str) -> Dict[str, str]:
    """The properties of a unit that are used here. Raises SystemdError, also for a name that is none."""
    if not UNIT.fullmatch(unit):
        raise SystemdError(f"{unit!r} is not the name of a unit")
    answer = _systemctl("show", f"--property={','.join(_PROPERTIES)}", "--", unit, deadline_s=LOOK_DEADLINE_S)
    pairs = (line.partition("=") for line in answer.splitlines() if "=" in line)
    return {key: value for key, _, value in pairs}


def stop(unit: str, deadline_s: float) -> None:
    """Stop a unit and wait until it has stopped. Raises SystemdError."""
    _systemctl("stop", "--", unit, deadline_s=deadline_s)


def start(unit: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Start a unit; returns when systemd counts it as started. Raises SystemdError."""
    _systemctl("start", "--", unit, deadline_s=deadline_s)


def is_live(properties: Dict[str, str]) -> bool:
    """Whether anything of the unit runs or is about to."""
    return properties.get("ActiveState") in LIVE_STATES


def exists(properties: Dict[str, str]) -> bool:
    """Whether systemd knows such a unit."""
    return properties.get("LoadState") not in (None, "", "not-found")


def main_pid(properties: Dict[str, str]) -> int:
    """The pid of the unit's main process, 0 where there is none."""
    text = properties.get("MainPID", "")
    return int(text) if text.isdigit() else 0


def since(properties: Dict[str, str]) -> Any:
    """Since when (Unix seconds) the unit is active, or inactive; None where systemd does not say."""
    name = "ActiveEnterTimestampMonotonic" if is_live(properties) else "InactiveEnterTimestampMonotonic"
    text = properties.get(name, "")
    # The monotonic time, because the readable one depends on locale and time zone.
    age_s = time.clock_gettime(time.CLOCK_MONOTONIC) - int(text) / 1e6 if text.isdigit() and text != "0" else None
    return None if age_s is None else time.time() - age_s


def command(properties: Dict[str, str]) -> List[str]:
    """The command line that the unit starts, empty where it cannot be told."""
    found = _ARGV.search(properties.get("ExecStart", ""))
    return _words(found.group(1)) if found else []


def environment(properties: Dict[str, str]) -> Dict[str, str]:
    """The environment that the unit's file sets (not that of an EnvironmentFile)."""
    pairs = (word.partition("=") for word in _words(properties.get("Environment", "")) if "=" in word)
    return {key: value for key, _, value in pairs}


def _words(text: str) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()
