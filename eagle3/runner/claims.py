"""Who works on an attempt: the marker that its processes bear, the lock and the claim of its supervisor, its secrets."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Dict, Optional

from eagle3.runner import rundir, state
from eagle3.runner.errors import VerbError, complain
from eagle3.runner.preflight import check_secrets_given, secret_names


def marker(run_dir: Path, attempt: int) -> Dict[str, str]:
    """The environment variables by which every process of an attempt can be known."""
    return {"EAGLE3_RUN_ID": run_dir.name, "EAGLE3_ATTEMPT": str(attempt), "EAGLE3_RUN_DIR": str(run_dir)}


def lock(path: Path) -> Optional[int]:
    """Hold the attempt for as long as this process lives; None where another supervisor has it.

    Where the file system has no locks (some network ones), the claim of the attempt's folder alone decides.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        complain(f"no lock on {path}: {error}")
    return descriptor


def hand_over(secrets: Dict[str, str]) -> int:
    """The descriptor from which whoever is started may `read_secrets`; to be closed here once it has been inherited.

    To be called without secrets too, so that "none" and "the launcher died" differ. They fit into the pipe: check_secrets.
    """
    reading, writing = os.pipe()
    try:
        os.write(writing, json.dumps(secrets).encode("ascii"))
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading


def read_secrets(descriptor: int) -> Dict[str, str]:
    """The secrets that the launcher hands over through a pipe. Raises ValueError where it died before it had."""
    with os.fdopen(descriptor, "rb") as pipe:
        found = json.loads(pipe.read().decode("utf-8"))
    return {str(key): str(value) for key, value in found.items()}


def secrets_of_environment(run_dir: Path) -> Dict[str, str]:
    """The run's secrets for a foreground supervisor (a batch job), which finds them in its own environment.

    Raises VerbError that names those that are not there.
    """
    launch = rundir.read_object(run_dir / "launch.json")
    found = {name: os.environ[name] for name in secret_names(launch) if name in os.environ}
    check_secrets_given(run_dir.name, launch, found)
    return found


def claim_next(run_dir: Path) -> int:
    """The attempt that a foreground supervisor (a batch job) takes: the first, or the one after an ended one.

    Raises VerbError("busy") where the last attempt may still be alive: a job submitted twice is harmless.
    """
    numbers = state.attempts(run_dir)
    if numbers:
        now_state = state.summary(run_dir, time.time())["state"]
        if now_state in state.LIVE:
            raise VerbError("busy", f"The run {run_dir.name} is {now_state} already.", "Stop it first.")
    attempt = numbers[-1] + 1 if numbers else 1
    if not rundir.claim(state.attempt_dir(run_dir, attempt), run_dir.stat().st_mode & 0o2770):
        raise VerbError("busy", f"Another start of {run_dir.name} was faster.", "Look at the run's state.")
    return attempt
