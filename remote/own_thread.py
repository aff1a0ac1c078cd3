"""A container in a thread of its own, so that the link lives on while its user stands still.

A terminal that is not read stops Textual's event loop in the middle of a write, for as long as it pleases. With the SSH
connection in the same loop nobody would answer keepalives, and the far side would hang up. So the console's container
runs here: news wait in the container until they are asked for, and nothing is asked twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from remote.container import Container
from remote.errors import LinkError
from remote.link import Link

T = TypeVar("T")
OnLink = Callable[[Link], None]
Make = Callable[[OnLink, Ask], Container]

JOIN_LIMIT_S = 5.0
_END = object()


class LooseThreads(ThreadPoolExecutor):
    """A thread for each call, which nobody waits for at the end: a name server that does not answer, or a file system that
    hangs, would else keep the process alive after the operator has left."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As the pool's."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                    future.set_exception(error)

        threading.Thread(target=work, name="link: aside", daemon=True).start()
        return future


class OwnThread:
    """Has everything that `Container` has, usable from the event loop that called first. ``make`` makes the container.

    Coroutines and iterators are waited for in the caller's loop and run in the thread; a plain method is handed over and
    not waited for. Questions and changes of the link come back into the caller's loop. Raises what ``make`` raises.
    """

    def __init__(self, make: Make, on_link: OnLink, ask: Ask) -> None:
        self._on_link = on_link
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._container = make(self._tell, self._asked_at_home(ask))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._container, name)
        if inspect.iscoroutinefunction(found):
            return functools.partial(self._call, found)
        if inspect.isasyncgenfunction(found):
            return functools.partial(self._iterate, found)
        if callable(found):
            return functools.partial(self._hand_over, found)
        return found

    async def close(self) -> None:
        """End the connection and the thread, once."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stop is None:
            return
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._container.close(), self._loop))
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, JOIN_LIMIT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        self._home = asyncio.get_running_loop()
        if self._loop is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=asyncio.run, args=(self._live(ready),), name="link", daemon=True)
            self._thread.start()
            ready.wait()
        assert self._loop is not None
        if self._thread is None:
            raise LinkError("unreachable", f"{self._container.host} is not connected: closed")
        return self._loop

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_default_executor(LooseThreads())
        ready.set()
        await self._stop.wait()

    async def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        loop = self._started()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(*args, **kwargs), loop))

    def _hand_over(self, method: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._started().call_soon_threadsafe(functools.partial(method, *args, **kwargs))

    async def _iterate(
        self, method: Callable[..., AsyncGenerator[T, None]], *args: Any, **kwargs: Any
    ) -> AsyncGenerator[T, None]:
        items: Any = method(*args, **kwargs)
        step: asyncio.Task[Any] | None = None

        async def following() -> Any:
            nonlocal step
            step = asyncio.current_task()
            return await anext(items, _END)

        async def end() -> None:
            if step is not None and not step.done():
                step.cancel()
                await asyncio.wait({step})
            await items.aclose()

        try:
            while (item := await self._call(following)) is not _END:
                yield item
        finally:
            with contextlib.suppress(LinkError):  # closed meanwhile: it has ended
                await self._call(end)

    def _tell(self, link: Link) -> None:
        if self._home is not None:
            with contextlib.suppress(RuntimeError):  # that loop has ended: nobody is there to be told
                self._home.call_soon_threadsafe(self._on_link, link)

    def _asked_at_home(self, ask: Ask) -> Ask:
        def at_home(question: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
            async def asked(about: HostKeyQuestion | SecretQuestion) -> Any:
                async def put() -> Any:
                    return await question(about)

                assert self._home is not None
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(put(), self._home))

            return asked

        return Ask(*(at_home(question) if question is not None else None for question in (ask.host_key, ask.secret)))
