"""The child that does the work: its command, its environment, and ``started.json``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from eagle3 import __version__
from eagle3.runner import claims, detach, hooks, identity, redact, rundir, state


def argv(run_dir: Path, launch: Dict[str, Any]) -> List[str]:
    """The worker's command line."""
    return [str(part).replace("{run_dir}", str(run_dir)) for part in launch.get("argv") or [""]]


def environment(run_dir: Path, attempt: int, launch: Dict[str, Any], secrets: Dict[str, str]) -> Dict[str, str]:
    """The worker's environment: ours, the launch's, the secrets, and the marker of the attempt."""
    env = detach.child_environment({str(k): str(v) for k, v in (launch.get("env") or {}).items()})
    if launch.get("pythonpath"):
        env["PYTHONPATH"] = os.pathsep.join([launch["pythonpath"], *filter(None, [env.get("PYTHONPATH")])])
    given = {
        name: value for name, value in secrets.items() if name != hooks.webhook_secret(launch)
    }  # that one is not the worker's
    env.update(given)
    env[redact.NAMES_VARIABLE] = ",".join(given)
    env.update(claims.marker(run_dir, attempt))
    return env


def start(run_dir: Path, attempt: int, launch: Dict[str, Any], secrets: Dict[str, str], actor: str) -> "subprocess.Popen[bytes]":
    """Start the worker and write ``started.json``. Raises OSError with no worker left where either fails."""
    folder = state.attempt_dir(run_dir, attempt)
    log = os.open(folder / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o660)
    try:
        child = subprocess.Popen(
            argv(run_dir, launch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=str(run_dir),
            env=environment(run_dir, attempt, launch, secrets),
            start_new_session=True,
        )
    finally:
        os.close(log)
    record = {
        "v": 1,
        "attempt": attempt,
        "t": time.time(),
        **identity.of(child.pid),
        "supervisor": identity.of(os.getpid()),
        "argv": argv(run_dir, launch),
        "actor": actor,
        "versions": {"runner": __version__, "python": sys.version.split()[0]},
    }
    try:
        rundir.write_json(folder / "started.json", record)
    except OSError:
        child.kill()
        child.wait()
        raise
    return child
