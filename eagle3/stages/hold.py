"""Holding a worker while the operator has paused its run: between two units of work, with nothing freed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from eagle3.stages.context import StageContext

_TELL_EVERY_S = 10.0
_POLL_S = 0.2


class Hold:
    """Whether a stage has to hold, asked between two units of its work. ``seconds``: how long it has held so far.

    While it holds, progress says by whom and since when, so that the run is not taken for stalled.
    """

    def __init__(self, ctx: StageContext, stage: str, unit: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ctx, self._stage, self._unit, self._clock = ctx, stage, unit, clock
        self._since: float | None = None
        self._told = 0.0
        self.done: float = 0
        self.total: float | None = None
        self.seconds = 0.0

    def __call__(self) -> bool:
        """True while the run is paused. The first call after the pause's end says so and restarts the rate."""
        order = self._ctx.order("pause")
        now = self._clock()
        if order:
            if self._since is None:
                self._since, self._told = now, now - _TELL_EVERY_S
                self._ctx.journal.event("paused", f"{self._words(order)} `eagle3 resume` lets it go on.")
            if now - self._told >= _TELL_EVERY_S:
                self._told = now
                self.tell(6 * _TELL_EVERY_S, self._words(order))
            return True
        if self._since is not None:
            held_s = now - self._since
            self._since = None
            self.held(held_s)
            self._ctx.journal.event("resumed", f"The run goes on after a pause of {held_s:.0f} s.")
        return False

    def wait(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Hold here until the run goes on or is stopped; the caller looks for the stop."""
        while self() and not self._ctx.stop_requested():
            sleep(_POLL_S)

    def tell(self, quiet_s: float, reason: str) -> None:
        """Say in the progress why nothing moves, and for how long nothing may be heard."""
        self._ctx.journal.progress(self._stage, self.done, self.total, self._unit, quiet_s=quiet_s, reason=reason)

    def held(self, held_s: float) -> None:
        """Count a wait that is over, whatever it was for: it is in no rate and in no stage's seconds."""
        self.seconds += held_s
        self._ctx.paused_s += held_s
        self._ctx.journal.restart_rate()
        self._ctx.journal.progress(self._stage, self.done, self.total, self._unit)

    def _words(self, order: dict[str, Any]) -> str:
        since = time.strftime("%H:%M", time.localtime(float(order.get("t") or 0)))
        return f"Paused by {order.get('by') or 'somebody'} since {since}; it keeps its memory and its devices."
