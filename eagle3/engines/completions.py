"""Many requests to a run's own server: bounded concurrency, a limit on each, retries, failures counted, and an end as
soon as the operator asks for one or the server dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

Item = TypeVar("Item")

_BACKOFF_S = 0.5
_WATCH_S = 0.2


class RequestFailed(Exception):
    """A request got no usable answer. ``refused``: the server will refuse it every time (a prompt that is too long).
    ``unreachable``: no connection came about, so the request has never been with the server."""

    def __init__(self, reason: str, *, refused: bool = False, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        self.unreachable = unreachable


@dataclass(frozen=True)
class Failure(Generic[Item]):
    """An item of ``run_bounded`` whose work failed, and why."""

    item: Item
    error: RequestFailed


class Completions:
    """An async client of one server. ``timeout_s`` limits each attempt; connection errors, timeouts and the server's own
    errors are tried ``retries`` more times, with a pause that doubles."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float,
        retries: int = 3,
        backoff_s: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = _BACKOFF_S if backoff_s is None else backoff_s
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(
            base_url=base_url, trust_env=False, timeout=None, limits=limits, transport=transport
        )  # fmt: skip

    async def __aenter__(self) -> Completions:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """The JSON object that the server answers. ``timeout_s``: this request's own limit. Raises RequestFailed after the
        last attempt, or at once when refused."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        reason, unreachable = "", False
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._backoff_s * 2 ** (attempt - 1))
            try:
                unreachable = False
                async with asyncio.timeout(limit_s):
                    response = await self._client.post(path, json=body)
            except TimeoutError:
                reason = f"no answer within {limit_s:.4g} s"
                continue
            except httpx.HTTPError as error:
                reason, unreachable = f"{type(error).__name__}: {error}", isinstance(error, httpx.ConnectError)
                continue
            if response.is_success:
                try:
                    answer = response.json()
                except ValueError:
                    answer = None
                if isinstance(answer, dict):
                    return answer
                reason = "the answer is not a JSON object"
                continue
            reason = f"status {response.status_code}: {_message(response)}"
            if response.is_client_error and response.status_code not in (408, 429):
                raise RequestFailed(reason, refused=True)
        times = f" (tried {self._retries + 1} times)" if self._retries else ""
        raise RequestFailed(f"{reason}{times}", unreachable=unreachable)


async def run_bounded(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[None]],
    *,
    concurrency: int,
    watch: Callable[[], None],
    hold: Callable[[], bool] = lambda: False,
) -> list[Failure[Item]]:
    """Do ``work`` for every item, at most ``concurrency`` at a time; the items that failed.

    ``watch`` is called five times a second and ends everything by raising (Stopped, StageError of a dead server). Work
    under way is cancelled then; what it had put on disk stays. While ``hold`` is true no item is begun. Any other exception
    of ``work`` ends everything too.
    """
    pending = iter(items)
    failures: list[Failure[Item]] = []

    async def worker() -> None:
        for item in pending:
            while hold():  # noqa: ASYNC110 - a file of another process says when it ends
                await asyncio.sleep(_WATCH_S)
            try:
                await work(item)
            except RequestFailed as error:
                failures.append(Failure(item, error))

    async def watcher() -> None:
        while True:
            watch()
            await asyncio.sleep(_WATCH_S)

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    watching = asyncio.create_task(watcher())
    everything: asyncio.Future[list[None]] = asyncio.gather(*workers)
    ending: list[asyncio.Future[Any]] = [watching, everything]
    try:
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        await everything
    finally:
        for task in (*workers, watching):
            task.cancel()
        await asyncio.gather(*workers, watching, everything, return_exceptions=True)
    watch()
    return failures


def _message(response: httpx.Response) -> str:
    try:
        body = response.json()
    except ValueError:
        return response.text[:300]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
