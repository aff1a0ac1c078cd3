"""Which items are with a server now, so that its death can say who was there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from eagle3.engines.completions import RequestFailed
from eagle3.rows import Row

DYING_S = 10.0
"""A server whose engine has died may answer errors for so long before it ends itself."""
_LOOK_S = 0.2


class WithServer:
    """Rows by their ``index``, from the request on until what it is for has come.

    A server may refuse for seconds what comes after its death, as vLLM's front does when its engine has died: what begins after
    a request failed was not with it, unless another request is answered meanwhile.
    """

    def __init__(self, dying_s: float = DYING_S) -> None:
        self._dying_s = dying_s
        self._items: dict[int, Row] = {}
        self._again: set[int] = set()
        self._late: dict[int, Row] = {}
        self._failing = False

    @property
    def items(self) -> list[Row]:
        """Who is there."""
        return list(self._items.values())

    def nobody(self) -> None:
        """Nothing is under way any more."""
        self._items.clear()
        self._again.clear()
        self._late.clear()
        self._failing = False

    async def certain(self, watch: Callable[[], None]) -> None:
        """Where a request has failed and none was answered since, wait for a while whether the server is dying: who was with it
        must not be forgotten before. ``watch`` raises where it has died."""
        deadline = time.monotonic() + self._dying_s
        while self._failing and time.monotonic() < deadline:
            watch()
            await asyncio.sleep(_LOOK_S)

    def begins(self, item: Row) -> None:
        """A request is sent."""
        index = item["index"]
        if index in self._items:
            self._again.add(index)
        elif self._failing:
            self._late[index] = item
        else:
            self._items[index] = item

    def is_answered(self) -> None:
        """The server has answered a request as it should, so it lives."""
        self._failing = False
        self._items |= self._late
        self._late.clear()

    def fails(self, item: Row, error: RequestFailed) -> None:
        """A request failed. Who has never reached the server, or was refused, is not there."""
        index = item["index"]
        self._late.pop(index, None)
        if error.refused or not (error.reached or index in self._again):
            self.leaves(index)
        self._failing = self._failing or (error.reached and not error.refused)

    def leaves(self, index: int) -> None:
        """What was asked for has come, or will not."""
        self._items.pop(index, None)
        self._late.pop(index, None)
        self._again.discard(index)
