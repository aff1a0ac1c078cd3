"""An attempt whose launcher or supervisor died at a bad moment: find what it left running before starting again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import List

from eagle3.runner import identity, proctable, rundir, state


def leftovers(run_dir: Path, attempt: int) -> List[proctable.Process]:
    """What is alive of an attempt but its supervisor: bearers of its marker, and what its last heartbeat saw."""
    folder = state.attempt_dir(run_dir, attempt)
    found = {(p.pid, p.start_ticks) for p in proctable.marked(str(run_dir), attempt)}
    found.update(p for p in state.recorded_processes(folder) if identity.is_running(*p))
    supervisor = rundir.read_object(folder / "starting.json").get("supervisor") or {}
    return sorted(found - {(supervisor.get("pid"), supervisor.get("start_ticks"))})


def find_or_adopt(run_dir: Path, attempt: int) -> bool:
    """Whether something of the attempt is alive.

    A supervisor on its way is left to report. A worker without one, started but never written down, gets its
    ``started.json`` here, so that it is known and can be stopped: the run is then "unsupervised".
    """
    found = proctable.marked(str(run_dir), attempt)
    if not found:
        return False
    if any("supervise" in proctable.command_line(p.pid) for p in found):
        return True
    pids = {p.pid for p in found}
    leader = min((p for p in found if p.ppid not in pids), key=lambda p: p.start_ticks)
    rundir.write_json(
        state.attempt_dir(run_dir, attempt) / "started.json",
        {
            "v": 1, "attempt": attempt, "t": time.time(), **identity.of(leader.pid), "supervisor": {},
            "argv": proctable.shown_command(leader.pid), "adopted": True,
        },
    )  # fmt: skip
    return True
