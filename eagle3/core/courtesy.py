"""How many requests a run may keep in flight at a server that others use as well. Pure.

Additive increase, multiplicative decrease, on the 95th percentile of the time to the first token: the server's own figure,
over everybody's requests. "Usual" is what it was before the run's first request.
"""

from __future__ import annotations

from dataclasses import dataclass

USUAL_REQUESTS = 20
"""Requests of others before their latency counts as the usual one; else the run's own, one at a time, tell it."""


@dataclass(frozen=True)
class Latency:
    """The 95th percentile of so many requests, in seconds."""

    p95_s: float
    requests: float


class Courtesy:
    """``most``: the spec's concurrency. ``factor``: how many times the usual latency is bearable. ``limit``: requests in flight
    now; 0 holds everything until the next window."""

    def __init__(self, most: int, factor: float, before: Latency | None = None) -> None:
        self._most = most
        self._factor = factor
        self.usual_s = before.p95_s if before is not None and before.requests >= USUAL_REQUESTS else None
        self.limit = most if self.usual_s is not None else 1

    def take(self, window: Latency | None) -> str:
        """Set the limit after a window of a few seconds (None: no request ended in it). A sentence where it holds back."""
        if window is None or window.requests < 1:
            # Nothing came through: whoever was held may try again, one at a time.
            self.limit = max(self.limit, 1)
            return ""
        if self.usual_s is None:
            self.usual_s, self.limit = window.p95_s, self._most
            return ""
        if window.p95_s > self._factor * self.usual_s:
            before, self.limit = self.limit, self.limit // 2
            times = window.p95_s / max(self.usual_s, 1e-9)
            return (
                f"The time to the first token of others and ours is {window.p95_s:.2g} s (95th percentile of "
                f"{window.requests:.0f} requests), {times:.1f} times the usual {self.usual_s:.2g} s: "
                f"{self.limit} instead of {before} requests in flight."
            )
        self.limit = min(self.limit + 1, self._most)
        return ""
