"""A command with a small file system of its own, in a mount namespace of its own: the machine's mounts stay as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def on_tmpfs(
    place: Path,
    options: str,
    command: Sequence[str],
    *,
    prepare: str = "true",
    stdin: bytes = b"",
    read_only: bool = False,
    timeout_s: float = 90,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``command`` with a tmpfs of ``options`` on ``place``, after the shell command ``prepare``. Skips, which CI counts
    as a failure, where this user may not mount one."""
    place.mkdir(exist_ok=True)
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = f"mount -t tmpfs -o {options} tmpfs {place}"
    if subprocess.run([*unshare, "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a tmpfs, so a full disk cannot be made")
    remount = f"mount -o remount,ro {place}" if read_only else "true"
    script = f'{mount} && {{ {prepare}; }} && {remount} && exec "$@"'
    return subprocess.run([*unshare, "sh", "-c", script, "sh", *command], input=stdin, capture_output=True, timeout=timeout_s)
