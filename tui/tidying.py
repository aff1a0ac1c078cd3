"""When the collector of garbage walks over everything: while nobody presses keys, not in the middle of a picture.

A full walk over a console's objects takes 60 to 180 ms, in which neither screen nor key is served, and Python does it whenever
enough young objects have stayed. What has a cycle and is no longer needed (the widgets of a closed dialog) can wait for a quiet
moment: memory after 10^6 rows and lines is measured with this.
"""

from __future__ import annotations

import gc

EVERY_S = 600.0
"""Seconds between two full walks."""
QUIET_S = 20.0
"""Seconds without a key after which nobody is taken to be at it."""
YOUNG = (2000, 5, 1_000_000)
"""Objects before the youngest are looked at; of five such looks one goes to those that stayed once; never by itself to all."""


def keep_loaded() -> None:
    """Leave what is loaded by now out of every walk: it stays until the end. Collecting goes on for what comes later."""
    gc.freeze()
    gc.set_threshold(*YOUNG)
    gc.enable()


class Tidy:
    """Walks over everything once in EVERY_S, where the last key is QUIET_S ago. Times are of a clock that never goes back."""

    def __init__(self, now: float) -> None:
        self._walked_at = self._key_at = now

    def key(self, now: float) -> None:
        """A key was pressed."""
        self._key_at = now

    def due(self, now: float) -> bool:
        """Whether to walk now; asked once a second."""
        if now - self._walked_at < EVERY_S or now - self._key_at < QUIET_S:
            return False
        self._walked_at = now
        return True
