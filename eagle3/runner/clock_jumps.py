"""Whether the machine's clock is set while a run works, held against a clock that nobody can set."""

from __future__ import annotations

import time
from typing import Optional, Tuple

from eagle3.runner.conditions import Excursion

_AT_ONCE_S = 1.0
"""Between the two clocks of one look lies less; where it is more, the machine slept there."""


def clocks() -> Tuple[float, float]:
    """The clock, which can be set, and at the same moment one that cannot, in seconds. That one goes on while the machine sleeps:
    whose clock is right when it wakes has had no jump."""
    while True:
        before, wall, after = _steady(), time.time(), _steady()
        if after - before < _AT_ONCE_S:
            return wall, after


def _steady() -> float:
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:  # a kernel without it; then a sleep is told as a jump
        return time.monotonic()


class ClockJumps:
    """Whether the clock has left a steady one. ``jump_s``: by more than so many seconds between two looks; in an excursion half
    of that counts as still moving. ``quiet_s``: see ``Excursion``."""

    def __init__(self, jump_s: float, clocks: Tuple[float, float], quiet_s: float) -> None:
        self._jump_s, self._clocks = jump_s, clocks
        self._excursion = Excursion(quiet_s)
        self.jump_s = self.between_s = self.net_s = 0.0
        """The last jump; the seconds between the two looks; the sum of the excursion's jumps."""
        self.moves = 0
        """Of the excursion under way, or of the one that is just over."""

    def look(self, clocks: Tuple[float, float]) -> Optional[bool]:
        """``clocks``: the clock and the steady one, in seconds. Gives what ``Excursion.look`` gives."""
        (wall, steady), self._clocks = self._clocks, clocks
        self.between_s = clocks[1] - steady
        self.jump_s = clocks[0] - wall - self.between_s
        moved = abs(self.jump_s) > (self._jump_s / 2 if self._excursion.on else self._jump_s)
        found = self._excursion.look(moved, clocks[1])
        self.net_s = self.jump_s if found else self.net_s + self.jump_s
        self.moves = self._excursion.moves if self._excursion.on else self.moves
        return found
