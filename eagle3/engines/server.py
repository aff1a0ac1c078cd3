"""What a stage needs of a server, whoever started it and whatever runs inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TypeVar

import httpx

from eagle3.engines.prometheus import Counters
from eagle3.runner.handed import Handed
from eagle3.stages.context import StageError

ServerKind = Literal["plain", "extract", "draft", "ngram"]

STAGE_OF: dict[str, str] = {"plain": "regenerate", "extract": "extract", "draft": "evaluate", "ngram": "evaluate"}
"""The stage that a kind of server is usually for."""

Result = TypeVar("Result")


class ServerDied(StageError):
    """A server ended, or lives and answers nothing. ``Server.surviving`` mends it where the spec allows."""


def unexplained() -> bool:
    """A death whose cause is not known."""
    return False


class Server(Protocol):
    """Context manager: on entry the server answers and offers the target; on exit one of the run's own is gone.

    ``base_url`` has neither a trailing slash nor ``/v1`` and may change when the server is started again, ``model`` is the
    name to put in requests, ``pid`` is 0 for a server that is not the run's own, ``handed`` says which files one in extraction
    mode may hand over and is None for others.
    """

    name: ServerKind
    model: str
    base_url: str
    start_s: float
    pid: int
    log_path: Path
    handed: Handed | None

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...

    def check_alive(self) -> None:
        """Raise ServerDied when the server has ended or answers nothing any more."""

    def counters(self) -> Counters:
        """What ``/metrics`` says now: ``vllm:…`` counters and gauges, summed over engines; a metric with a label of its own
        (such as ``position``) is a dict over that label's values. Raises StageError when the server does not answer."""

    def limit(self) -> int | None:
        """Requests that may be in flight now at a server that others use too; None for the run's own."""

    def client(self) -> httpx.Client:
        """A client of one's own to this server; the caller closes it."""

    def surviving(self, work: Callable[[], Result], died: Callable[[], bool] = unexplained) -> Result:
        """Do ``work``; after a death that can be mended do it again, so it must ask only for what is missing, or start over.
        ``died`` is called at each death: true where its cause is found and out of the way; the earlier ones count no more then.
        Raises what ``work`` raises, and StageError where the server died too often."""
