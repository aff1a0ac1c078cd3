"""Before a run starts: what has agreed to yield is written down, then stopped. Done by the supervisor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from eagle3.runner import identity, proctable, state
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.services import plan, records, servers, systemd, turns
from eagle3.runner.services.plan import Live

WAIT_S = 150.0
"""So long the supervisor waits for another process that is just starting the services of this run again."""

Tell = Callable[[str, str, str, str], None]
"""``tell(kind, text, level, actor)``: an event."""


def needed(run_dir: Path, launch: Dict[str, Any]) -> bool:
    """Whether this attempt has to do with services at all."""
    return bool(plan.check(launch) or records.outstanding(run_dir))


def give_way(run_dir: Path, attempt: int, launch: Dict[str, Any], turn: int, tell: Tell) -> None:
    """Stop what the plan names and has agreed; ``turn`` is ours (`wait_for_turn`).

    ``yielded.json`` is on disk before anything is stopped. What an earlier attempt (or a supervisor of this one that
    died) has stopped and nobody has started again is taken over. Raises VerbError with the sentence for the operator;
    what was stopped until then is outstanding, and the caller must restore it.
    """
    try:
        old = records.outstanding(run_dir)
        before = [entry for _, yielded in old for entry in yielded["services"]]
        folder = state.attempt_dir(run_dir, attempt)
        stops = []
        for number, found in enumerate(_live(launch)):
            stops.append((_entry(folder, turn, number, found), found))
        replaced = [known for known in before if any(records.same(known, entry) for entry, _ in stops)]
        entries = [known for known in before if known not in replaced] + [entry for entry, _ in stops]
        if not entries:
            return
        records.write_yielded(folder, attempt, turn, entries)
        records.hand_over([a for a, _ in old if a != attempt], run_dir, attempt)
        for known in replaced:
            records.forget(known)
        for entry, found in stops:
            _stop(entry, found, tell)
    except OSError as error:
        raise from_os_error(error, "stopping what must yield to the run") from error


def _live(launch: Dict[str, Any]) -> List[Live]:
    """What of the plan is alive; all of it may be stopped, else VerbError."""
    result = []
    for wish in plan.check(launch):
        found = plan.live(wish)
        if found is not None:
            plan.may_yield(found)
            result.append(found)
    return result


def wait_for_turn(run_dir: Path) -> int:
    """Our turn with the services of this run. Raises VerbError where another process does not come to an end."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            turn = turns.take(run_dir)
        except OSError as error:
            raise from_os_error(error, "claiming what must yield to the run") from error
        if turn is not None:
            return turn
        if time.monotonic() > deadline:
            _, pid = turns.owner_pid(run_dir)
            raise VerbError("busy", f"Process {pid} has been starting this run's services for {WAIT_S:.0f} s.", "Resume later.")
        time.sleep(0.1)


def _entry(folder: Path, turn: int, number: int, found: Live) -> Dict[str, Any]:
    """How a service is written down; what holds secrets goes to a file of its own, for this user only."""
    process = found.process
    entry: Dict[str, Any] = {
        "kind": "unit" if found.wish.get("unit") else "process",
        "name": found.name,
        "unit": str(found.wish.get("unit") or ""),
        "process": str(found.wish.get("process") or ""),
        "consent": str(found.wish["consent"]),
        "consented_by": str(found.wish["consented_by"]),
        "since": found.since,
        "pid": process.pid if process else 0,
        "start_ticks": process.start_ticks if process else 0,
        "grace_s": float(found.wish.get("grace_s") or 30.0),
    }
    if entry["kind"] == "process" and process is not None:
        known = servers.record(process)
        if known is None:
            raise VerbError("permission", f"{found.name} ended or cannot be read while it is written down.", "Start again.")
        entry["kept"] = records.keep(folder, f".yielded-{turn}-{number}.json", known)
    return entry


def _stop(entry: Dict[str, Any], found: Live, tell: Tell) -> None:
    why = f"with the consent of {entry['consented_by']}: {entry['consent']}"
    tell("service_stopping", f"stopping {entry['name']}, {why}", "info", entry["consented_by"])
    tree: List[Tuple[int, int]] = servers.tree(found.process) if found.process is not None else []
    if entry["kind"] == "unit":
        try:
            systemd.stop(entry["unit"], entry["grace_s"] + servers.KILL_GRACE_S + 90.0)
        except systemd.SystemdError as error:
            raise VerbError(
                "failed", f"{entry['unit']} could not be stopped for the run: {error}.", "Stop it by hand."
            ) from error
    elif tree:
        servers.end(tree, entry["grace_s"])
    left = [p for p in tree if identity.is_running(*p)]
    if left:
        names = ", ".join(f"{pid} {proctable.name(pid)[:60]}" for pid, _ in left[:5])
        raise VerbError("failed", f"Of {entry['name']} there is still alive: {names}.", "End it, then resume the run.")
    if plan.live(found.wish) is not None:
        text = f"{entry['name']} came back by itself right after it was stopped: something keeps it alive."
        raise VerbError("failed", text, "Stop what restarts it, or name that as the unit.")
