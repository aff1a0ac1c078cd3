"""Who holds a run: people who have paused it, and guards that tripped. Each has a hold of its own in ``control.json``, and ends
by itself. Pure.

A hold is ``{"by","t"}``, and ``{"guard"}`` for a guard's: the guard's name. The file has the first one as ``pause`` and those
that came after it as ``pause["also"]``, so that a reader of an older version sees a paused run as ever.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, List, Optional

Hold = Dict[str, Any]


def of(request: Dict[str, Any]) -> List[Hold]:
    """The holds in the content of ``control.json``, the oldest first. What a foreign hand wrote there is none."""
    first = request.get("pause")
    if not isinstance(first, dict) or not first:
        return []
    also = first.get("also")
    return [_read(entry) for entry in [first, *(also if isinstance(also, list) else [])] if isinstance(entry, dict) and entry]


def _read(entry: Dict[str, Any]) -> Hold:
    t = entry.get("t")
    hold: Hold = {"by": str(entry.get("by") or ""), "t": float(t) if isinstance(t, (int, float)) else 0.0}
    return {**hold, "guard": str(entry["guard"])} if entry.get("guard") else hold


def written(holds: List[Hold]) -> Optional[Dict[str, Any]]:
    """``pause`` as the file has it; None where nobody holds the run."""
    if not holds:
        return None
    return {**holds[0], "also": holds[1:]} if len(holds) > 1 else dict(holds[0])


def with_person(holds: List[Hold], by: str, t: float) -> List[Hold]:
    """After somebody has asked for a pause. One person's is enough: who was first stays."""
    return holds if any(not hold.get("guard") for hold in holds) else [*holds, {"by": by, "t": t}]


def with_guard(holds: List[Hold], guard: str, t: float) -> List[Hold]:
    """After the guard of that name has tripped. It takes nobody's hold away, and holds once however often it trips."""
    if any(hold.get("guard") == guard for hold in holds):
        return holds
    return [*holds, {"by": f"the guard {guard}", "t": t, "guard": guard}]


def without(holds: List[Hold], lifted: Optional[Iterable[Any]]) -> List[Hold]:
    """After a "go-on" for ``lifted``, pairs of "by" and "t" as the asker was shown them (None: for all)."""
    if lifted is None:
        return []
    gone = {(str(pair[0]), float(pair[1])) for pair in lifted}
    return [hold for hold in holds if (hold["by"], hold["t"]) not in gone]


def words(holds: List[Hold], local: Callable[[float], time.struct_time] = time.localtime) -> str:
    """``ann since 10:00 and the guard server since 10:05``: everybody who holds the run."""
    told = [f"{hold['by'] or 'somebody'} since {time.strftime('%H:%M', local(hold['t']))}" for hold in holds]
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))
