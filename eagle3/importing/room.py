"""Room for an import: its states get second names, so that only what cannot be linked, and the rest of the run, takes any."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from eagle3.core.estimate import estimate
from eagle3.core.wording import bytes_label
from eagle3.runner.errors import VerbError
from eagle3.stages.context import StageContext
from eagle3.store import StateStore

FILLED = ("prepare", "regenerate", "extract")
"""The stages that an import brings."""


def check(ctx: StageContext, store: StateStore, files: Iterable[tuple[Path, int]], *, converts: bool) -> None:
    """Raises VerbError (disk) where the run's disk is too small. ``files``: each file of states with its tokens; ``converts``:
    they are stored in another precision than they come in, so that each is written anew."""
    copied = copied_bytes(ctx.run_dir, store, files, converts=converts)
    need = estimate(ctx.spec, taken=FILLED).needs[0]
    free, floor = shutil.disk_usage(ctx.run_dir).free, ctx.spec.disk_floor_bytes
    if free - copied - need.bytes >= floor:
        return
    why = "are stored in another precision" if converts else "are on another disk than the workspace"
    states = f"{bytes_label(copied)} of states, which {why}, and " if copied else ""
    raise VerbError(
        "disk",
        f"{ctx.run_dir.parent} has {bytes_label(free)} free; the import needs {states}{bytes_label(need.bytes)} for the rest of "
        f"the run ({need.what}), and keeps {bytes_label(floor)} free (disk_floor_bytes).",
        "Choose a workspace on the disk of the states, or free some space.",
    )


def copied_bytes(run_dir: Path, store: StateStore, files: Iterable[tuple[Path, int]], *, converts: bool) -> int:
    """Bytes of the states that get no second name in ``run_dir`` and are written there."""
    links: dict[int, bool] = {}
    tokens = count = 0
    for file, its in files:
        if not converts:
            try:
                device = file.stat().st_dev
            except OSError:  # it will be put aside
                continue
            if device not in links:
                links[device] = _can_link(file, run_dir)
            if links[device]:
                continue
        tokens, count = tokens + its, count + 1
    return store.bytes_of(tokens, count) if count else 0


def _can_link(file: Path, folder: Path) -> bool:
    """Tried, since of two places on one device one may still refuse (a bind mount, a file system without hard links)."""
    with tempfile.TemporaryDirectory(prefix=".link-", dir=folder) as scratch:
        try:
            os.link(file.resolve(), Path(scratch) / "states")
        except OSError:
            return False
        return True
