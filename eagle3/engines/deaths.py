"""The guard of a server that died: told, and then as ``guards.server`` says. Who starts it again, and when, is the server's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eagle3.engines.server import ServerKind
from eagle3.runner import control
from eagle3.runner.events import guard_record
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold

_WITHIN_S = 3600.0
"""Deaths longer ago are not counted: a server that dies once in a day is not one that cannot run. Of time in which it served: a
trillion parameters load for longer than half an hour, and no death would ever be the third of an hour by the clock."""


class Deaths:
    """Tells of the deaths of the server ``name``, which works for ``stage``."""

    def __init__(self, ctx: StageContext, name: ServerKind, stage: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ctx, self._name, self._stage, self._clock = ctx, name, stage, clock
        self._at: list[float] = []
        self._away_s = 0.0

    @contextmanager
    def away(self) -> Iterator[None]:
        """While it is being had again: time that does not count, however it ends."""
        began = self._clock()
        try:
            yield
        finally:
            self._away_s += self._clock() - began

    def one_more(self) -> int:
        """Count a death; how many there were within an hour of its serving."""
        now = self._clock() - self._away_s
        self._at = [*(at for at in self._at if now - at < _WITHIN_S), now]
        return len(self._at)

    def judge(self, explained: Callable[[], bool]) -> None:
        """Ask whether the cause of a death, which is not counted yet, is found and out of the way: the ones before it count no
        longer then."""
        if explained():
            self._at = []

    @property
    def any(self) -> bool:
        """Whether it has died."""
        return bool(self._at)

    def tell(self, found: str, action: str, deaths: int, allowed: int, detail: str = "", *, pause_s: float = 0.0) -> bool:
        """Of a death after which the server is to be had again. ``deaths`` of the ``allowed``; true where the run
        is now held."""
        response = self._ctx.spec.guards.server
        if response == "pause":
            action = f"The run is held until `eagle3 resume` lets it go on. {action}"
        self._event(found, action, deaths, allowed, response, detail, pause_s)
        if response == "pause":
            control.hold(self._ctx.run_dir, self._ctx.journal.attempt, "server")
        return response == "pause"

    def stop(self, found: str, deaths: int, allowed: int, detail: str = "") -> StageError:
        """Of a death that ends the stage, by the error that is returned."""
        action = "Mend the cause, then resume the run."
        self._event(found, action, deaths, allowed, "stop", detail, 0.0)
        return StageError(f"{found} {action}", detail=detail)

    def hold(self) -> None:
        """Hold until somebody lets the run go on. Raises Stopped on a stop."""
        Hold(self._ctx, self._stage).wait()
        self._ctx.check_stop()

    def _event(self, found: str, action: str, deaths: int, allowed: int, response: str, detail: str, pause_s: float) -> None:
        counts = {"deaths": deaths, "restarts": allowed, "pause_s": pause_s}
        self._ctx.journal.event(
            "guard-server",
            f"{found} {action}",
            level="error" if response == "stop" else "warn",
            detail=detail,
            guard=guard_record("server", deaths, allowed, counts, response, action),
            server=self._name,
        )
