"""What the parts of the facade share: where they ask, how they ask, and how an answer gets its shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from remote.channel import Reply
from remote.errors import ContainerError

T = TypeVar("T")

READ_LIMIT_S = 30.0


class FacadePart:
    """Mixed into `remote.container.Container`, which owns the link."""

    workspace: str
    python: str

    async def _call(self, verb: str, args: dict[str, Any], limit_s: float) -> Reply:
        raise NotImplementedError

    async def _connected(self, limit_s: float) -> None:
        """Wait for the link, at most ``limit_s``. Raises LinkError."""
        raise NotImplementedError

    def _of(self, run_id: str, **more: Any) -> dict[str, Any]:
        return {"workspace": self.workspace, "run_id": run_id, **more}


def shaped(make: Callable[[], T], verb: str) -> T:
    """An answer as ``make`` shapes it. Raises ContainerError where it cannot."""
    try:
        return make()
    except ValueError as error:  # pydantic's ValidationError is one
        raise ContainerError(
            "failed", f"The container's answer to '{verb}' makes no sense to this console.", "", str(error)
        ) from error
