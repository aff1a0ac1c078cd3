"""Whose turn it is to touch what a run has stopped: one process at a time, the next only when the last is done or dead.

A turn is a folder ``yielding/<host>/<n>/`` that is renamed into place whole, so that it never is without its owner. The
host is in the path because services, unlike runs on shared storage, belong to one machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Optional, Tuple

from eagle3.runner import identity, rundir


def folder(run_dir: Path) -> Path:
    """Where the turns of this machine are."""
    return run_dir / "yielding" / host()


def host() -> str:
    """This machine's name as records and folders have it."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname()).lstrip(".") or "host"


def newest(run_dir: Path) -> int:
    """The number of the last turn that was taken, 0 before the first."""
    try:
        return max((int(entry.name) for entry in folder(run_dir).iterdir() if entry.name.isdigit()), default=0)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def is_free(run_dir: Path, number: int) -> bool:
    """Whether the owner of turn ``number`` is done with it, or dead (a reboot kills too)."""
    place = folder(run_dir) / str(number)
    return number == 0 or (place / "done").exists() or not identity.alive(rundir.read_object(place / "owner.json"))


def take(run_dir: Path) -> Optional[int]:
    """The turn that is now ours, or None where another process has it. Raises OSError where it cannot be written."""
    number = newest(run_dir)
    if not is_free(run_dir, number):
        return None
    place = folder(run_dir)
    mode = run_dir.stat().st_mode & 0o2770
    for made in (place.parent, place):
        rundir.claim(made, mode)
    temporary = place / f".new-{os.urandom(6).hex()}"
    rundir.claim(temporary, mode)
    try:
        rundir.write_json(temporary / "owner.json", {"v": 1, **identity.of(os.getpid())})
        temporary.rename(place / str(number + 1))
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if newest(run_dir) > number:
            return None  # another was faster: a folder with something in it is not replaced
        raise
    rundir.fsync_folder(place)
    return number + 1


def give_back(run_dir: Path, number: int) -> None:
    """We are done. Where that cannot be written (a full disk), our death says it."""
    with contextlib.suppress(OSError):
        (folder(run_dir) / str(number) / "done").touch()


def owner_pid(run_dir: Path) -> Tuple[int, int]:
    """Number and owner's pid of the newest turn."""
    number = newest(run_dir)
    return number, int(rundir.read_object(folder(run_dir) / str(number) / "owner.json").get("pid") or 0)
