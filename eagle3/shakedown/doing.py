"""A shakedown's run, watched: its worker is killed once behind the first checkpoint, and the run is resumed.

What has been done is read from the run directory each time, so that a shakedown whose command was ended goes on when it is
asked for again under its id.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core.shakedown import STEPS_PAST_SAVE
from eagle3.runner import adopt, events, fork, proctable, rundir, state, stop

POLL_S = 0.1
LEFT_S = 60.0
"""How long processes of the killed attempt may take to be gone: the supervisor ends them."""
STOP_S = 120.0
"""How long a run whose time is over may take to stop."""
FILE = "shakedown.json"
"""In the run directory: what was known before, what the kill left alive, and at the end the report."""

Say = Callable[[str], None]


class OverTime(RuntimeError):
    """The shakedown took longer than it may; the run was told to stop. The message is one sentence."""


def carry_out(
    run_dir: Path,
    resume: Callable[[], None],
    *,
    limit_s: float,
    actor: str,
    say: Say,
    told: Callable[[dict[str, Any]], None] = lambda summary: None,
    again: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Follow the run to its end, killing and resuming it once; its last summary. ``told`` is given each one. ``again``: it is
    asked for again, so a run that has failed or was stopped is resumed first.

    Raises OverTime, after the run was stopped.
    """
    deadline = clock() + limit_s
    while True:
        summary = state.summary(run_dir, time.time())
        told(summary)
        attempt = int(summary["attempt"])
        killed = killed_attempt(run_dir)
        if summary["state"] in state.LIVE:
            if clock() > deadline:
                raise OverTime(_stop(run_dir, summary, limit_s, actor, sleep, clock))
            if killed in (0, attempt) and (step := ripe(run_dir, attempt)) is not None:
                kill(run_dir, attempt, step, actor, say)
            sleep(POLL_S)
        elif killed == attempt and summary["exit_signal"] == signal.SIGKILL:
            note(run_dir, left_alive=_left(run_dir, attempt, sleep, clock))
            say("The worker is gone, and what it had started; resuming.")
            resume()
        elif again and summary["state"] != "finished":
            again = False
            say(f"It had ended ({str(summary['state_text']).rstrip('.')}); resuming it.")
            resume()
        else:
            return summary


def ripe(run_dir: Path, attempt: int) -> int | None:
    """The last step of an attempt that has saved and gone a few steps further; None before that."""
    saved = fork.checkpoints(run_dir)
    steps = [int(row.get("step") or 0) for row in training_rows(run_dir) if row.get("attempt") == attempt] if saved else []
    return steps[-1] if any(steps[0] <= step <= steps[-1] - STEPS_PAST_SAVE for step in saved if steps) else None


def training_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of training steps in the last part of ``metrics.jsonl``."""
    rows = state.tail_rows(run_dir / "metrics.jsonl")
    return [row for row in rows if row.get("stage") == "train" and row.get("split", "train") == "train"]


def kill(run_dir: Path, attempt: int, step: int, actor: str, say: Say) -> None:
    """SIGKILL to the worker of an attempt; the first time it is an event too."""
    started = rundir.read_object(state.attempt_dir(run_dir, attempt) / "started.json")
    if not killed_attempt(run_dir):
        text = f"The shakedown kills the worker behind step {step} (SIGKILL), to see that the run goes on from its checkpoint."
        events.append(run_dir, attempt, "shakedown-kill", text, actor=actor)
        note(run_dir, killed_attempt=attempt, killed_at_step=step)
        say(text)
    proctable.send((int(started.get("pid") or 0), int(started.get("start_ticks") or 0)), signal.SIGKILL)


def killed_attempt(run_dir: Path) -> int:
    """Which attempt this shakedown has killed, rather than the machine's memory; 0: none yet."""
    return int(rundir.read_object(run_dir / FILE).get("killed_attempt") or 0)


def note(run_dir: Path, **more: Any) -> None:
    """Add to the shakedown's own file."""
    rundir.write_json(run_dir / FILE, {"v": 1, **rundir.read_object(run_dir / FILE), **more})


def _left(run_dir: Path, attempt: int, sleep: Callable[[float], None], clock: Callable[[], float]) -> list[int]:
    deadline = clock() + LEFT_S
    while (left := adopt.leftovers(run_dir, attempt)) and clock() < deadline:
        sleep(POLL_S)
    return [pid for pid, _ in left]


def _stop(
    run_dir: Path,
    summary: dict[str, Any],
    limit_s: float,
    actor: str,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> str:
    stop.stop(run_dir, "now", actor)
    deadline = clock() + STOP_S
    while state.summary(run_dir, time.time())["state"] in state.LIVE and clock() < deadline:
        sleep(POLL_S)
    stage = (summary.get("progress") or {}).get("stage") or "its start"
    return (
        f"The shakedown has not ended within {limit_s / 60:.0f} min and was stopped in {stage}; see its log, raise "
        "--limit-min, or lower what makes a full batch so slow."
    )
