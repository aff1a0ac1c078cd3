"""The worker's pen: progress, metric rows and events, written only through ``runner.rundir`` so that every
reader may trust the run directory at any moment."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3.runner import rundir
from eagle3.runner.redact import redact, secret_values


class Journal:
    """Writes what one attempt of a run has to say. ``clock`` gives Unix seconds."""

    def __init__(self, run_dir: Path, attempt: int, *, actor: str = "worker", clock: Callable[[], float] = time.time) -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self._actor = actor
        self._clock = clock
        self._secrets = secret_values(os.environ)
        self.seq = 0
        """Number of the last metric row; a rank that takes over the pen goes on from it."""
        self._stage_start: tuple[str, float, float] | None = None
        self._last_write = 0.0
        self._known: tuple[str, float, float | None, str] = ("", 0, None, "")

    def progress(
        self,
        stage: str,
        done: float,
        total: float | None,
        unit: str,
        *,
        quiet_s: float | None = None,
        reason: str = "",
        force: bool = True,
    ) -> None:
        """State where ``stage`` is. Rate and ETA follow from the first call of the stage in this attempt.

        ``quiet_s`` announces that nothing may be heard for so many seconds (a model loads), with the reason.
        With ``force`` false the file is written at most twice a second.
        """
        now = self._clock()
        self._known = (stage, done, total, unit)
        if self._stage_start is None or self._stage_start[0] != stage:
            self._stage_start = (stage, now, done)
        elif not force and now - self._last_write < 0.5:
            return
        _, since, from_done = self._stage_start
        rate = (done - from_done) / (now - since) if now > since and done > from_done else None
        eta_s = (total - done) / rate if rate and total is not None else None
        self._last_write = now
        told = {
            "v": 1, "attempt": self.attempt, "stage": stage, "done": done, "total": total, "unit": unit,
            "rate": rate, "eta_s": eta_s, "t": now,
            "quiet_until": now + quiet_s if quiet_s else None, "reason": reason,
        }  # fmt: skip
        with _but_for_room():
            rundir.write_json(self.run_dir / "progress.json", told, durable=False)

    def waits(self, stage: str, reason: str, quiet_s: float | None) -> None:
        """State that ``stage`` waits, where it was told to be last: who waits need not know how far the work is."""
        known, done, total, unit = self._known
        where = (done, total, unit) if known == stage else (0, None, "")
        self.restart_rate()
        self.progress(stage, *where, quiet_s=quiet_s, reason=reason)

    def restart_rate(self) -> None:
        """Forget the stage's start: what comes next runs at another pace (after a model has loaded)."""
        self._stage_start = None

    def metrics(self, stage: str, step: int, *, split: str = "train", **values: Any) -> None:
        """Append a metric row. NaN and Inf become null: JSON has no word for them, and plots draw a gap."""
        self.seq += 1
        row = {
            "v": 1,
            "attempt": self.attempt,
            "seq": self.seq,
            "t": self._clock(),
            "stage": stage,
            "split": split,
            "step": step,
        }
        rundir.append_line(self.run_dir / "metrics.jsonl", row | {k: _finite(v) for k, v in values.items()})

    def event(self, kind: str, text: str, *, level: str = "info", detail: str = "", **data: Any) -> None:
        """Append an event and say it in the log."""
        row = {
            "v": 1,
            "attempt": self.attempt,
            "t": self._clock(),
            "kind": kind,
            "level": level,
            "actor": self._actor,
            "text": redact(text, self._secrets),
        }
        if detail:
            row["detail"] = redact(detail, self._secrets)[-2000:]
        with _but_for_room():
            rundir.append_line(self.run_dir / "events.jsonl", row | data)
        self.log(f"[{level}] {text}" if level != "info" else text)

    def rank(self, rank: int, stage: str, step: int) -> None:
        """Say how far one process of a distributed training is: each writes its own ``ranks/<rank>.json``, once a step."""
        folder = self.run_dir / "ranks"
        folder.mkdir(exist_ok=True)
        row = {"v": 1, "attempt": self.attempt, "rank": rank, "stage": stage, "step": step, "t": self._clock()}
        rundir.write_json(folder / f"{rank}.json", row, durable=False)

    def log(self, line: str) -> None:
        """A line in the attempt's log (the supervisor redirects stdout there). The time as vLLM writes it, with the day: a run
        may take several, and `eagle3.runner.logtime` finds a place by it."""
        with _but_for_room():
            sys.stdout.write(f"{time.strftime('%m-%d %H:%M:%S', time.localtime(self._clock()))} {line}\n")
            sys.stdout.flush()


@contextlib.contextmanager
def _but_for_room() -> Iterator[None]:
    """Around what tells of the work and is none of it: a full disk costs the words, never the stage that waits for room. What a
    stage makes, and its rows, fail on it as ever."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
