"""The state of a run as a pure function of what is known of its last attempt; ``state`` gathers the facts."""

from __future__ import annotations

import signal
from typing import Any, Dict, NamedTuple, Optional, Tuple

EXIT_STOPPED = 75
"""The worker's exit code for "I was asked to stop and have saved everything"."""

LIVE = frozenset({"starting", "running", "unsupervised", "stalled"})
QUIET_AT_LEAST_S = 300.0
QUIET_GAPS = 10.0
START_DEADLINE_S = 60.0
"""An attempt without a living starter that has not started after so long will not start any more."""
FOREIGN_BEAT_S = 60.0
"""Where the processes cannot be looked up (another host on shared storage), a heartbeat younger than this is life."""

NOTHING: Dict[str, Any] = {}


class Facts(NamedTuple):
    """What is known of the last attempt at one moment. Times are Unix seconds, records are the files' objects.

    ``same_world`` and the lives are about the processes of ``started``; ``starter_*`` about the process that
    ``starting`` names. ``left`` are pids of the attempt's other processes that still live. ``progress`` is the
    attempt's own. ``gap_s`` is the median gap between the stage's rows, ``stall_s`` the silence that
    the spec allows. ``yielding`` names what is being stopped for it. ``unheard_s``: for how long, by a steady clock, whoever
    watches the run has seen no new sign of it; 0 for who only looks once.
    """

    now: float
    ended: Dict[str, Any] = NOTHING
    started: Dict[str, Any] = NOTHING
    starting: Dict[str, Any] = NOTHING
    stop: Dict[str, Any] = NOTHING
    pause: Dict[str, Any] = NOTHING
    progress: Dict[str, Any] = NOTHING
    row_t: Optional[float] = None
    gap_s: Optional[float] = None
    stall_s: float = QUIET_AT_LEAST_S
    same_world: bool = True
    worker_lives: bool = False
    supervisor_lives: bool = False
    starter_lives: bool = False
    starter_here: bool = True
    claimed_t: Optional[float] = None
    host: str = ""
    boot_id: str = ""
    beat_t: Optional[float] = None
    left: Tuple[int, ...] = ()
    reason: str = ""
    yielding: str = ""
    unheard_s: float = 0.0


def state(facts: Facts) -> Tuple[str, str]:
    """The run's state in a word and in a sentence."""
    if facts.ended:
        return _ended(facts)
    if not facts.started:
        return _not_started(facts)
    if not facts.same_world:
        return _elsewhere(facts)
    if not facts.worker_lives and not facts.supervisor_lives:
        if facts.left:
            pids = ", ".join(map(str, facts.left))
            return "unknown", f"ended, exit unknown; processes of it are still alive ({pids}): stop the run to end them"
        return "unknown", "ended, exit unknown: its supervisor was killed; resume it to go on"
    if not facts.supervisor_lives:
        return "unsupervised", "running, unsupervised: its supervisor was killed; how it ends will not be known"
    if not facts.worker_lives:
        return "running", "ending: the worker is gone, its last processes are being ended"
    if facts.stop:
        return "running", "stopping now" if facts.stop.get("mode") == "now" else "stopping after the next checkpoint"
    if facts.pause:
        reason = str(facts.progress.get("reason") or "")
        return "running", reason if reason.startswith("Paused") else "pausing after the work under way"
    return _running(facts)


def silence(facts: Facts) -> Tuple[float, float]:
    """For how many seconds nothing has been heard of a run that lives, and how many are usual for it."""
    signs = [t for t in (facts.started.get("t"), facts.progress.get("t"), facts.row_t) if isinstance(t, (int, float))]
    # After the clock was set back the last signs lie ahead of it, and look new until it has come there again.
    silent_s = max(facts.now - max(signs) if signs else 0.0, facts.unheard_s)
    return silent_s, max(facts.stall_s, QUIET_GAPS * (facts.gap_s or 0.0))


def _running(facts: Facts) -> Tuple[str, str]:
    quiet_until = facts.progress.get("quiet_until") or 0.0
    silent_s, allowed_s = silence(facts)
    announced_s = max(0.0, quiet_until - (facts.progress.get("t") or 0.0))
    if (facts.now > quiet_until or facts.unheard_s > announced_s) and silent_s > allowed_s:
        heard = f"nothing heard for {_span(silent_s)}, which is beyond {_span(allowed_s)}"
        return "stalled", f"stalled: {heard}; look at the log, stop it if nothing moves"
    return "running", str(facts.progress.get("reason") or "running") if facts.now <= quiet_until else "running"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _ended(facts: Facts) -> Tuple[str, str]:
    ended = facts.ended
    code, number = ended.get("code"), ended.get("signal")
    survivors = ended.get("survivors") or []
    tail = f"; still alive: {', '.join(str(s.get('pid')) for s in survivors)}" if survivors else ""
    if code == 0:
        return "finished", f"finished{tail}"
    if ended.get("stopped"):
        by = ended.get("by") or facts.stop.get("by")
        return "stopped", f"stopped{f' by {by}' if by else ''}{tail}"
    if ended.get("error"):
        return "failed", f"{ended['error']}{tail}"
    if number:
        hint = " (often: out of memory)" if number == signal.SIGKILL else ""
        return "failed", f"ended by {_signal_name(number)}{hint}{tail}"
    return "failed", f"{facts.reason or f'failed with exit code {code}'}{tail}"


def _elsewhere(facts: Facts) -> Tuple[str, str]:
    host = facts.started.get("host")
    if host and host != facts.host and facts.beat_t is not None and facts.now - facts.beat_t < FOREIGN_BEAT_S:
        return "running", f"running on {host}, judged by its heartbeat"
    if facts.started.get("boot_id") != facts.boot_id:
        return "lost", "lost when the machine was restarted; resume it to go on"
    return "lost", "lost when the container was restarted; resume it to go on"


def _not_started(facts: Facts) -> Tuple[str, str]:
    if facts.starter_lives:
        return "starting", f"starting: {facts.yielding} is being stopped for it first" if facts.yielding else "starting"
    since = facts.starting.get("t") or facts.claimed_t
    if since is None:
        return "unknown", "made, but never started; resume it to start it"
    # A claim made after ``now`` was read lies a moment ahead of it.
    if facts.starter_here and abs(facts.now - since) < START_DEADLINE_S:
        return "starting", "starting"
    return "unknown", "never started: its start was interrupted; resume it to start it"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
