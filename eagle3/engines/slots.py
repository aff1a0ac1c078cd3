"""How many requests may be with a server at once, where that number changes while they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_LOOK_S = 0.2


class Slots:
    """Places for requests in flight: ``most``, or as many as ``limit`` allows when one is asked for (None: no limit of its own),
    and none while ``hold`` is true.

    A place is held for the request alone. What is done with its answer comes after it, and the server has the next one by then.
    """

    def __init__(
        self, most: int, limit: Callable[[], int | None] = lambda: None, hold: Callable[[], bool] = lambda: False
    ) -> None:
        self._most, self._limit, self._hold = most, limit, hold
        self._freed = asyncio.Event()
        self.taken = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        while self._full() or self._hold():
            self._freed.clear()
            # A place may also come by a limit that rises or a pause that ends, of which nobody tells.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._freed.wait()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._freed.set()

    def _full(self) -> bool:
        limit = self._limit()
        return self.taken >= (self._most if limit is None else limit)
