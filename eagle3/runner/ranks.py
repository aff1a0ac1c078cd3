"""How far each process of a distributed training is: ``ranks/<r>.json``, written by the worker's processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from eagle3.runner import rundir


class Rank(NamedTuple):
    """One process of the training: its last finished step, and when (Unix seconds) it said so."""

    rank: int
    stage: str
    step: int
    t: float


def read(run_dir: Path, attempt: int) -> List[Rank]:
    """The ranks of ``attempt``, in order; none where the training has one process or says nothing."""
    found = []
    with contextlib.suppress(OSError):
        for file in (run_dir / "ranks").iterdir():
            if file.suffix == ".json" and file.stem.isdigit():
                record = rundir.read_object(file)
                if record.get("attempt") == attempt and _whole(record):
                    found.append(Rank(int(file.stem), str(record.get("stage") or ""), record["step"], float(record["t"])))
    return sorted(found)


def _whole(record: Dict[str, Any]) -> bool:
    return isinstance(record.get("step"), int) and isinstance(record.get("t"), (int, float))


def slowest(ranks: List[Rank]) -> Optional[Rank]:
    """The rank that is behind: the lowest step, of equal ones the one silent longest. None for fewer than two ranks."""
    return min(ranks, key=lambda rank: (rank.step, rank.t)) if len(ranks) > 1 else None


def slowest_text(ranks: List[Rank], now: float) -> str:
    """One sentence about the slowest rank, empty where there is none."""
    last = slowest(ranks)
    if last is None:
        return ""
    ahead = max(rank.step for rank in ranks)
    behind = f"step {last.step} of the others' {ahead}" if last.step < ahead else f"step {last.step} like the others"
    return f"slowest is rank {last.rank}: {behind}, last heard {max(0.0, now - last.t):.0f} s ago"
