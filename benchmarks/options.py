"""How thoroughly to measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """``quick``: only see whether it works; such figures are not to be quoted. ``watch_s``: how long the link is watched.
    ``run_dir``: a finished run to take prompts and states from, where none is to be made; its wall time is the one it tells.
    ``workspace``: where runs of a benchmark stand and stay, so that a second call goes on with them; None: a temporary one."""

    quick: bool = False
    watch_s: float = 600.0
    run_dir: Path | None = None
    workspace: Path | None = None

    def rounds(self, wanted: int) -> int:
        """How often to repeat a measurement."""
        return 1 if self.quick else wanted
