"""Many requests to a server: bounded concurrency, a limit on each in time and size, retries, failures counted, and an end as
soon as the operator asks for one or the server dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

from eagle3.engines.tls import trust

Item = TypeVar("Item")

_BACKOFF_S = 0.5
_WATCH_S = 0.2
_MAX_ANSWER_BYTES = 64 << 20
"""Far beyond any answer with log-probabilities; a body without an end must not fill this process's memory."""


class RequestFailed(Exception):
    """A request got no usable answer. ``refused``: the server will refuse it every time (a prompt that is too long).
    ``unreachable``: no connection came about, at the last attempt. ``reached``: one came about at some attempt, so that the
    request has been with the server."""

    def __init__(self, reason: str, *, refused: bool = False, unreachable: bool = False, reached: bool | None = None) -> None:
        super().__init__(reason)
        self.refused = refused
        self.unreachable = unreachable
        self.reached = not unreachable if reached is None else reached


@dataclass(frozen=True)
class Failure(Generic[Item]):
    """An item of ``run_bounded`` whose work failed, and why."""

    item: Item
    error: RequestFailed


class Completions:
    """An async client of one server. ``timeout_s`` limits each attempt; connection errors, timeouts and the server's own
    errors are tried ``retries`` more times, with a pause that doubles. ``observe`` is told how long each answer took, in
    seconds. Whatever fails is told with the server's address."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float,
        retries: int = 3,
        backoff_s: float | None = None,
        max_answer_bytes: int = _MAX_ANSWER_BYTES,
        observe: Callable[[float], None] = lambda seconds: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = _BACKOFF_S if backoff_s is None else backoff_s
        self._max_answer_bytes = max_answer_bytes
        self._observe = observe
        self._who = f"the server at {base_url}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(
            base_url=base_url, verify=trust(base_url), trust_env=False, timeout=None, limits=limits, transport=transport
        )  # fmt: skip

    async def __aenter__(self) -> Completions:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """The JSON object that the server answers. ``timeout_s``: this request's own limit. Raises RequestFailed after the
        last attempt, or at once when refused.

        An attempt that got no answer in time is cancelled before the next one, and only one answer is ever returned: trying
        again doubles nothing.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        reason, unreachable, reached = "", False, False
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._backoff_s * 2 ** (attempt - 1))
            began = time.monotonic()
            try:
                unreachable = False
                async with asyncio.timeout(limit_s):
                    status, content = await self._send(path, body)
            except TimeoutError:
                reason, reached = f"{self._who} gave no answer within {limit_s:.4g} s", True
                continue
            except httpx.HTTPError as error:
                reason = f"{self._who} could not be asked, {type(error).__name__}: {error}"
                unreachable = isinstance(error, httpx.ConnectError)
                reached = reached or not unreachable
                continue
            reached = True
            if status < 300:
                answer = _object(content)
                if answer is not None:
                    self._observe(time.monotonic() - began)
                    return answer
                reason = f"the answer of {self._who} is not a JSON object"
                continue
            reason = f"{self._who} answered with status {status}: {_message(content)}"
            if 400 <= status < 500 and status not in (408, 429):
                raise RequestFailed(reason, refused=True)
        times = f" (tried {self._retries + 1} times)" if self._retries else ""
        raise RequestFailed(f"{reason}{times}", unreachable=unreachable, reached=reached)

    async def _send(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of one attempt. Raises RequestFailed for a body that does not end."""
        content = bytearray()
        async with self._client.stream("POST", path, json=body) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self._max_answer_bytes:
                    limit = f"{self._max_answer_bytes:,} bytes"
                    raise RequestFailed(
                        f"{self._who} sends more than {limit} for one answer; is it a vLLM server?", refused=False
                    )
            return response.status_code, bytes(content)


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
    under way is cancelled then; what it had put on disk stays. While ``hold`` is true no item is begun. Any other exception of
    ``work`` ends everything too.
    """
    pending = iter(items)
    failures: list[Failure[Item]] = []

    async def worker() -> None:
        while True:
            # A file of another process says when it ends. The item is taken after that, so that none waits in the hand of a
            # worker that is held.
            while hold():  # noqa: ASYNC110
                await asyncio.sleep(_WATCH_S)
            try:
                item = next(pending)
            except StopIteration:
                return
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


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _message(content: bytes) -> str:
    body = _object(content)
    if body is None:
        return content[:300].decode("utf-8", "replace")
    error = body.get("error", body)
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
