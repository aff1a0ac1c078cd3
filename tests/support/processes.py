"""Processes that a test starts to be found in the process table."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

LIMIT_S = 60.0


def begun(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """``process`` once it can be recognised: `Popen` returns in the midst of the exec, where for a moment the command line and
    the environment in /proc are empty."""
    folder, deadline = Path(f"/proc/{process.pid}"), time.monotonic() + LIMIT_S
    while not ((folder / "cmdline").read_bytes() and (folder / "environ").read_bytes()):
        assert process.poll() is None and time.monotonic() < deadline, f"{process.args!r} never began"
        time.sleep(0.01)
    return process
