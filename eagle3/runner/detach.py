"""Starting ourselves again: as a fresh process, from the zipapp or from the sources, tied to nobody's session."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Sequence

from eagle3.runner import redact

_SESSION_VARIABLES = ("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY")
_PR_SET_CHILD_SUBREAPER = 36


def own_command(*arguments: str, site: bool = False) -> List[str]:
    """The command that runs this very runner with ``arguments``.

    From the zipapp it is the zipapp; from the sources it is the folder of this package, which Python can run as it
    is. So no PYTHONPATH of ours leaks into what the runner starts. ``site`` lets installed packages be imported too.
    """
    archive = getattr(globals().get("__loader__"), "archive", None)
    home = str(archive) if archive else str(Path(__file__).resolve().parent)
    switches = [] if site and not archive else ["-I", "-S"]
    return [sys.executable, *switches, home, *arguments]


def child_environment(extra: Dict[str, str]) -> Dict[str, str]:
    """Our environment plus ``extra``, less what belongs to the login that will end (its agent, its terminal), and less secrets:
    those are handed on by name, never inherited."""
    env = {key: value for key, value in redact.without_secrets(os.environ).items() if key not in _SESSION_VARIABLES}
    env.update(extra)
    return env


def spawn(arguments: Sequence[str], *, log: int, cwd: Path, env: Dict[str, str], pass_fds: Sequence[int] = ()) -> None:
    """Run the runner with ``arguments`` in a session of its own, all three descriptors redirected, ``log`` for output.

    The started process must call ``leave`` first: it forks and its first half ends, which is what is waited for here.
    Raises OSError where it cannot be started.
    """
    first = subprocess.Popen(
        own_command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=str(cwd),
        env=env,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    first.wait()


def leave() -> None:
    """The second half of the double fork: go on as a process that leads no session and has no parent of ours."""
    if os.fork() > 0:
        os._exit(0)


def become_subreaper() -> bool:
    """Have orphans of our descendants handed to us instead of to PID 1; false where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
