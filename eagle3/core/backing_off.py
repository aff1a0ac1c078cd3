"""How many requests the extraction keeps in flight at a server of the run's own: fewer when it answers late, more again when it
does not. Pure.

Additive increase, multiplicative decrease, as TCP does: what is measured is the time of a request for each of its tokens, against
the median of the first ones. It keeps requests from timing out in a row; where others use a server too, `courtesy` decides alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

EARLY = 20
"""Requests whose median is the yardstick; before as many nothing is judged."""
WINDOW = 20
"""Requests that the 95th percentile is of; as many must end between two changes, so that a change can show."""
FEWEST_TOKENS = 64
"""A shorter request counts as one of so many tokens: its time is mostly overhead."""


@dataclass(frozen=True)
class Change:
    """The limit went from ``before`` to ``after`` requests in flight; times in seconds a token."""

    before: int
    after: int
    p95_s: float
    median_s: float


class BackOff:
    """The limit of requests in flight, between 1 and ``most``. ``factor``: the 95th percentile beyond so many times the early
    median halves it; 0 never does."""

    def __init__(self, most: int, factor: float) -> None:
        self.limit = most
        self._most = most
        self._factor = factor
        self._early: list[float] = []
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def take(self, seconds: float, tokens: int) -> Change | None:
        """A request of ``tokens`` tokens took ``seconds``; how the limit changes by it, if it does."""
        if not self._factor:
            return None
        each = seconds / max(tokens, FEWEST_TOKENS)
        if len(self._early) < EARLY:
            self._early.append(each)
            return None
        self._recent.append(each)
        if len(self._recent) < WINDOW:
            return None
        median = statistics.median(self._early)
        p95 = sorted(self._recent)[int(0.95 * WINDOW) - 1]
        late = p95 > self._factor * median
        after = max(1, self.limit // 2) if late else min(self._most, self.limit + 1)
        if after == self.limit:
            return None
        change = Change(self.limit, after, p95, median)
        self.limit = after
        self._recent.clear()
        return change
