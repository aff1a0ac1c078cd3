"""Which items are with a server now, so that its death can say who was there."""

from __future__ import annotations

from eagle3.engines.completions import RequestFailed
from eagle3.rows import Row


class WithServer:
    """Rows by their ``index``, from the request on until what it is for has come.

    A server may refuse for seconds what comes after its death, as vLLM's front does when its engine has died: what begins after
    a request failed, and before one is answered again, was not with it.
    """

    def __init__(self) -> None:
        self._items: dict[int, Row] = {}
        self._again: set[int] = set()
        self._failing = False

    @property
    def items(self) -> list[Row]:
        """Who is there."""
        return list(self._items.values())

    def nobody(self) -> None:
        """Nothing is under way any more."""
        self._items.clear()
        self._again.clear()
        self._failing = False

    def begins(self, item: Row) -> None:
        """A request is sent."""
        index = item["index"]
        if index in self._items:
            self._again.add(index)
        elif not self._failing:
            self._items[index] = item

    def is_answered(self) -> None:
        """The server has answered a request as it should."""
        self._failing = False

    def fails(self, item: Row, error: RequestFailed) -> None:
        """A request failed. Who has never reached the server, or was refused, is not there."""
        index = item["index"]
        if error.refused or not (error.reached or index in self._again):
            self.leaves(index)
        self._failing = self._failing or (error.reached and not error.refused)

    def leaves(self, index: int) -> None:
        """What was asked for has come, or will not."""
        self._items.pop(index, None)
        self._again.discard(index)
