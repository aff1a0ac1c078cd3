"""A disk of its own for a training, small enough to be filled: a tmpfs that only a fork of the test's own process sees."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eagle3.training.session import Session
from tests.stages.small_disk import fill

LIMIT_S = 60
_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # <linux/sched.h>


def on_its_own_disk(place: Path, size: str, do: Callable[[], None]) -> None:
    """``do`` in a fork that has a tmpfs of ``size`` on ``place``. Fails with the fork's words where it does."""
    place.mkdir()
    says = place.with_name(f"{place.name}.says")
    child = multiprocessing.get_context("fork").Process(target=_in_the_fork, args=(place, size, do, says))
    child.start()
    child.join(LIMIT_S)
    if child.is_alive():
        child.kill()
    said = says.read_text() if says.exists() else ""
    if said.startswith("mount"):
        pytest.skip("this user may not mount a tmpfs, so a full disk cannot be made")
    assert child.exitcode == 0, said


def _in_the_fork(place: Path, size: str, do: Callable[[], None], says: Path) -> None:
    try:
        _mount(place, size)
    except (OSError, subprocess.CalledProcessError) as error:
        says.write_text(f"mount: {error}")
        os._exit(1)
    try:
        do()
    except BaseException:  # noqa: BLE001 - whatever it was, the test's own process tells it
        says.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _mount(place: Path, size: str) -> None:
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS if user == 0 else _NEWNS | _NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    # Else the mount would be seen outside.
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)


@contextmanager
def filled_after(step: int, other: Path, leaves_bytes: int) -> Iterator[None]:
    """Somebody else takes all but so much of the disk, once the training has done ``step`` and before it saves anything."""
    orders = Session._orders

    def fill_first(session: Session, at: int, *about: object) -> object:
        if at == step:
            fill(other, leaves_bytes)
        return orders(session, at, *about)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "_orders", fill_first)
        yield


@contextmanager
def when_it_waits(run_dir: Path, do: Callable[[], object]) -> Iterator[None]:
    """Do it once the run says that it waits for space."""

    def look() -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            events, progress = run_dir / "events.jsonl", run_dir / "progress.json"
            told = events.exists() and any(json.loads(line)["kind"] == "guard-disk" for line in events.read_text().splitlines())
            if told and "want of space" in progress.read_text():
                do()
                return
            time.sleep(0.01)

    helper = threading.Thread(target=look)
    helper.start()
    try:
        yield
    finally:
        helper.join()


def keep(run_dir: Path, place: Path) -> None:
    """Bring the run out, before its disk is gone."""
    shutil.copytree(run_dir, place)
