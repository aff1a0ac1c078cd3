"""What every stage is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.core.spec import RunSpec
from eagle3.core.wording import bytes_label
from eagle3.journal import Journal
from eagle3.runner import events, holds, rundir


class StageError(RuntimeError):
    """A stage cannot go on. The message is one sentence that names the thing and what to do; ``detail`` holds the rest."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class Stopped(Exception):
    """The operator asked for a stop and the stage has put everything worth keeping on disk."""


@dataclass
class StageContext:
    """The run, its spec and its pen. ``stop_requested`` is polled between units of work: true after SIGTERM or a
    ``stop.json`` in mode after-checkpoint; the stage then saves and raises Stopped."""

    run_dir: Path
    spec: RunSpec
    journal: Journal
    model_dir: Path
    """The target's folder, '{cache}' and '~' already expanded."""
    worker_python: str
    server_python: str
    stop_requested: Callable[[], bool]
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Figures of the stages already finished, by stage."""
    paused_s: float = 0.0
    """How long this attempt has been held by pauses; stages' seconds leave it out."""

    def path(self, *parts: str) -> Path:
        """A path inside the run directory, its folder made."""
        path = self.run_dir.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def order(self, what: str) -> dict[str, Any]:
        """What is asked of this attempt by ``control.json`` ("pause", "checkpoint"): by whom first and when; else empty."""
        found = rundir.read_object(self.run_dir / "control.json")
        asked = found.get(what) if found.get("attempt") == self.journal.attempt else None
        return asked if isinstance(asked, dict) else {}

    def holds(self) -> list[holds.Hold]:
        """Everybody who holds this attempt, people and guards, the first first."""
        return holds.of({"pause": self.order("pause")})

    def check_stop(self) -> None:
        """Raise Stopped where the operator asked for it. Call it where everything done so far is on disk."""
        if self.stop_requested():
            raise Stopped

    def check_disk(self, more_bytes: int = 0) -> None:
        """Raise StageError where ``more_bytes`` would take the free space below the spec's floor."""
        free_bytes = shutil.disk_usage(self.run_dir).free
        if free_bytes - more_bytes < self.spec.disk_floor_bytes:
            raise self.disk_stop(
                f"The disk of {self.run_dir} has {bytes_label(free_bytes)} free; this step needs {bytes_label(more_bytes)} "
                f"and the run keeps {bytes_label(self.spec.disk_floor_bytes)} free (disk_floor_bytes).",
                free_bytes,
                more_bytes,
            )

    def disk_stop(self, found: str, free_bytes: int, more_bytes: int) -> StageError:
        """Tell of the guard of the disk's floor, which ends the stage by the error that is returned."""
        action = "Free some space, then resume the run."
        record = events.guard_record("disk", free_bytes, self.spec.disk_floor_bytes, {"needed_bytes": more_bytes}, "stop", action)
        self.journal.event("guard-disk", f"{found} {action}", level="error", guard=record)
        return StageError(f"{found} {action}")
