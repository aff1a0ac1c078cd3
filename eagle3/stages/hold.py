"""Holding a worker: while somebody has paused its run, or while it waits for what comes from outside. Nothing is freed."""

from __future__ import annotations

import time
from collections.abc import Callable

from eagle3.runner import holds
from eagle3.stages.context import StageContext

_TELL_EVERY_S = 10.0
_POLL_S = 0.2
_PAUSE = "pause"


class Hold:
    """Whether a stage has to hold, asked between two units of its work. ``seconds``: how long it has held so far.

    While it holds, progress says why and since when, so that the run is not taken for stalled. There may be several reasons at
    once: each is told, begins and ends by itself, and the time of two is counted once. ``done`` and ``total`` are the stage's;
    where they are None, progress keeps what was told last.
    """

    def __init__(self, ctx: StageContext, stage: str, unit: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ctx, self._stage, self._unit, self._clock = ctx, stage, unit, clock
        self._holders: list[holds.Hold] = []
        self._waits: dict[str, str] = {}
        self._since = self._paused_since = self._told = 0.0
        self.done: float | None = None
        self.total: float | None = None
        self.seconds = 0.0

    def __call__(self) -> bool:
        """True while the run is paused, by people or guards. The first call after the last one's end says so."""
        holders = self._ctx.holds()
        if holders != self._holders:
            self._changed(holders)
        self._tell_again()
        return bool(holders)

    @property
    def paused(self) -> bool:
        """Whether the run was paused when it was asked last."""
        return bool(self._holders)

    @property
    def reason(self) -> str:
        """Everything that holds the stage, in sentences; empty where nothing does."""
        return " ".join(self._waits[name] for name in sorted(self._waits, key=lambda name: name != _PAUSE))

    def wait(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Hold here until the run goes on or is stopped; the caller looks for the stop."""
        while self() and not self._ctx.stop_requested():
            sleep(_POLL_S)

    def because(self, name: str, reason: str) -> None:
        """The stage waits, or still waits, for what ``name`` stands for; the sentence ``reason`` may change."""
        if not self._waits:
            self._since = self._clock()
        begins = name not in self._waits
        self._waits[name] = reason
        if begins:
            self._tell()
        self._tell_again()

    def over(self, name: str) -> None:
        """The wait for ``name`` is over. With the last one the rate begins anew, and its time is in no stage's seconds."""
        del self._waits[name]
        if not self._waits:
            held_s = self._clock() - self._since
            self.seconds += held_s
            self._ctx.paused_s += held_s
            self._ctx.journal.restart_rate()
        self._tell()

    def progress(self, *, force: bool = True) -> None:
        """Where the stage is, as ``done`` and ``total`` say, and what holds it."""
        if self._waits:
            self._ctx.journal.restart_rate()
        if self.done is None:
            self._ctx.journal.waits(self._stage, self.reason, self._quiet_s())
            return
        journal = self._ctx.journal
        journal.progress(
            self._stage, self.done, self.total, self._unit, quiet_s=self._quiet_s(), reason=self.reason, force=force
        )  # fmt: skip

    def _changed(self, holders: list[holds.Hold]) -> None:
        journal, before = self._ctx.journal, self._holders
        self._holders = holders
        if not holders:
            held_s = self._clock() - self._paused_since
            self.over(_PAUSE)
            waits = f"The pause is over after {held_s:.0f} s and the run still waits. {self.reason}"
            journal.event("resumed", waits if self._waits else f"The run goes on after a pause of {held_s:.0f} s.")
            return
        if not before:
            self._paused_since = self._clock()
        words = f"Paused by {holds.words(holders)}; it keeps its memory and its devices."
        journal.event("paused", f"{words} {_way_on(holders)}")
        self.because(_PAUSE, words)
        if before:
            self._tell()

    def _tell_again(self) -> None:
        if self._waits and self._clock() - self._told >= _TELL_EVERY_S:
            self._tell()

    def _tell(self) -> None:
        self._told = self._clock()
        self.progress()

    def _quiet_s(self) -> float | None:
        return 6 * _TELL_EVERY_S if self._waits else None


def _way_on(holders: list[holds.Hold]) -> str:
    guards = sum(bool(holder.get("guard")) for holder in holders)
    if 0 < guards < len(holders):
        return "`eagle3 resume` ends the pauses of people; once more, those of guards."
    return "`eagle3 resume` lets it go on."
