"""Who watches a workspace: each helper that was told an actor leaves ``watchers/<id>.json`` there while it lives."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from eagle3.runner import identity, rundir
from eagle3.runner.errors import complain
from eagle3.runner.rundir import PathLike

REFRESH_S = 15.0
FOREIGN_S = 120.0
"""A watcher of another machine, whose process cannot be looked up here, is gone when it has been silent for so long."""
MAX_TEXT = 120


class Presence:
    """This helper's own entry. It appears in a workspace with the first verb about that workspace, and leaves with `leave`.

    Writing it must never hurt the verb: a workspace that is not there, full or read-only has no entry of ours.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._actor = ""
        self._watching = ""
        self._since = 0.0
        self._workspace: Optional[Path] = None
        self._name = ""
        self._thread: Optional[threading.Thread] = None
        self._left = threading.Event()

    @property
    def actor(self) -> str:
        """Who sits at the other end, empty before that was told."""
        return self._actor

    def tell(self, actor: str, watching: Optional[str] = None) -> None:
        """The other end is ``actor`` and looks at ``watching`` (a run id; empty: the workspace; None: as before)."""
        with self._lock:
            self._since = self._since or self._clock()
            self._actor = actor[:MAX_TEXT]
            self._watching = self._watching if watching is None else watching[:MAX_TEXT]
        self.refresh()

    def watch(self, run_id: str) -> None:
        """The other end polls ``run_id`` (empty: the workspace alone)."""
        with self._lock:
            if run_id[:MAX_TEXT] == self._watching:
                return
            self._watching = run_id[:MAX_TEXT]
        self.refresh()

    def at(self, workspace: PathLike) -> None:
        """A verb is about ``workspace``: that is where we watch now."""
        place = rundir.workspace_path(workspace)
        with self._lock:
            if place == self._workspace or not self._actor:
                return
            self._remove()
            self._workspace = place
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_fresh, daemon=True)
            self._thread.start()

    def refresh(self) -> None:
        """Write our entry anew."""
        with self._lock:
            if self._workspace is None or not self._actor or self._left.is_set() or not self._workspace.is_dir():
                return
            folder = self._workspace / "watchers"
            me = identity.of(os.getpid())
            self._name = f"{re.sub(r'[^A-Za-z0-9-]', '_', me['host'])}-{me['pid']}-{me['start_ticks']}.json"
            record = {
                "v": 1, "actor": self._actor, "watching": self._watching, "since": self._since, "t": self._clock(), **me,
            }  # fmt: skip
            try:
                shared = self._workspace.stat().st_mode & 0o2070 == 0o2070  # a workspace that a group was given
                rundir.claim(folder, 0o2770 if shared else 0o700)
                rundir.write_json(folder / self._name, record, durable=False)
            except OSError as error:
                complain(f"who watches is not written down: {error}")

    def leave(self) -> None:
        """The channel is closed: nobody watches here any more."""
        self._left.set()
        with self._lock:
            self._remove()

    def _remove(self) -> None:
        if self._workspace is not None and self._name:
            with contextlib.suppress(OSError):  # a reader has pruned it, or the disk went away
                (self._workspace / "watchers" / self._name).unlink()

    def _keep_fresh(self) -> None:
        while not self._left.wait(REFRESH_S):
            self.refresh()


def watchers(workspace: PathLike, now: float) -> List[Dict[str, Any]]:
    """Who watches now, in the shape of ``core.records.Watcher``, the longest first. Entries of the dead are removed."""
    folder = rundir.workspace_path(workspace) / "watchers"
    found = []
    try:
        files = sorted(folder.glob("*.json"))
    except OSError:
        return []
    for file in files:
        with contextlib.suppress(OSError):  # it has just left, or is not ours to remove
            entry = rundir.read_object(file)
            if entry and _watches(entry, now):
                found.append(_told(entry, now))
            elif entry or now - file.stat().st_mtime > FOREIGN_S:
                file.unlink()
    return sorted(found, key=lambda watcher: float(watcher["since"]))


def _watches(entry: Dict[str, Any], now: float) -> bool:
    if entry.get("host") == socket.gethostname():
        return identity.alive(entry)
    t = entry.get("t")
    return isinstance(t, (int, float)) and now - t < FOREIGN_S


def _told(entry: Dict[str, Any], now: float) -> Dict[str, Any]:
    t = entry.get("t")
    return {
        "actor": str(entry.get("actor") or ""),
        "since": float(entry.get("since") or 0.0),
        "last_seen_age_s": max(0.0, now - t) if isinstance(t, (int, float)) else None,
        "watching": str(entry.get("watching") or ""),
        "host": str(entry.get("host") or ""),
        "pid": entry.get("pid"),
    }
