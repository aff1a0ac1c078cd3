"""The states of a run, apart from the records that hold them: a console names states before it has any record."""

from __future__ import annotations

from typing import Literal

RunState = Literal["starting", "running", "unsupervised", "stalled", "finished", "failed", "stopped", "lost", "unknown"]

LIVE_STATES = frozenset({"starting", "running", "unsupervised", "stalled"})
"""States in which a process of the run is, or is thought to be, alive."""

RESUMABLE_STATES = frozenset({"failed", "stopped", "lost", "unknown"})
