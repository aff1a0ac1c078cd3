"""Keeps the line up and says how it stands: notices silence and sleep, dials again, and knows when not to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from remote.ask import NOBODY, Ask
from remote.channel import HelperChannel
from remote.errors import ContainerError, LinkError
from remote.line import Line
from remote.settings import Settings

LinkStatus = Literal["connecting", "up", "degraded", "down", "refused"]


@dataclass(frozen=True)
class Link:
    """How the link stands. ``since`` is Unix time by this machine's clock; ``reason`` is a sentence, empty while up.

    degraded: the helper is slow to answer. down: it is being dialled again, unless the reason says that a person
    is needed. refused: host key or login; only `reconnect` tries again.
    """

    status: LinkStatus
    since: float
    reason: str = ""


class LinkKeeper:
    """Owns the line. ``rtt_s`` is the last ping's round trip in seconds."""

    def __init__(self, line: Line, host: str, ask: Ask, settings: Settings, on_link: Callable[[Link], None]) -> None:
        self._line = line
        self._host = host
        self._ask = ask
        self._settings = settings
        self._on_link = on_link
        self._up = asyncio.Event()
        self._by_hand = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.rtt_s: float | None = None
        self.link = Link("down", settings.clock(), "not connected yet")

    async def open(self, persist: bool) -> None:
        """Connect for the first time. Raises LinkError or ContainerError; with ``persist`` dialling goes on
        nevertheless, except where the host refused."""
        if self._task is not None:
            raise RuntimeError("the container is open already")
        self._set("connecting")
        try:
            await self._line.establish(self._ask)
        except (LinkError, ContainerError) as error:
            self._failed(error)
            if persist:
                self._start_keeping()
            else:
                await self._line.close()
            raise
        except BaseException:
            self._set("down", "connecting was cancelled")
            await self._line.close()
            raise
        self._set("up")
        self._start_keeping()

    async def channel(self, limit_s: float) -> HelperChannel:
        """The helper channel, once it is up. Raises LinkError after ``limit_s`` seconds, or at once where waiting is no use."""
        if self._task is None or self._task.done():
            raise LinkError("unreachable", f"{self._host} is not connected: {self.link.reason or 'closed'}")
        if self.link.status == "refused":
            raise LinkError("refused", self.link.reason)
        channel = self._line.channel
        if channel is not None and channel.closed.done():
            self._up.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._up.wait()
        except TimeoutError as error:
            raise LinkError("lost", f"{self._host} is not connected: {self.link.reason}") from error
        assert self._line.channel is not None
        return self._line.channel

    def reconnect(self) -> None:
        """Dial now, and ask the operator what has to be asked."""
        self._by_hand.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._line.close()
        self._set("down", "closed")

    def _start_keeping(self) -> None:
        self._task = asyncio.create_task(self._keep())
        self._task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._up.clear()
            self._set("down", f"a defect of this console ended the link ({error!r}); connect again and report it.")

    async def _keep(self) -> None:
        while True:
            if self._line.channel is not None and not self._line.channel.closed.done():
                reason = await self._watch(self._line.channel)
                self._up.clear()
                self._set("down", reason)
            await self._come_back()

    async def _watch(self, channel: HelperChannel) -> str:
        """Returns the reason when the line is lost."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        missed = 0
        while True:
            wall, timer = settings.clock(), loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.ping_every_s):
                    return await asyncio.shield(channel.closed)
            slept = self._slept(wall, timer)
            if not slept and loop.time() - channel.heard_at < settings.ping_every_s:
                missed = 0
                self._set("up")
                continue
            if await self._ping(channel):
                missed = 0
                self._set("up")
                continue
            if channel.closed.done():
                return channel.closed.result()
            missed += 1
            silent_s = loop.time() - channel.heard_at
            if slept or missed >= settings.pings_missed:
                reason = f"{self._host} has not answered for {silent_s:.0f} s"
                self._line.drop(reason)
                return reason
            self._set("degraded", f"{self._host} is slow to answer: nothing for {silent_s:.0f} s")

    async def _ping(self, channel: HelperChannel) -> bool:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        try:
            await channel.request("hello", dict(self._line.presence), self._settings.ping_limit_s)
        except LinkError:
            # Bytes of a long reply on a slow line are a sign of life too.
            return channel.heard_at > sent and not channel.closed.done()
        except ContainerError:
            # A complaint is an answer.
            return True
        self.rtt_s = loop.time() - sent
        return True

    async def _come_back(self) -> None:
        failures = 0
        while True:
            by_hand = await self._wait(failures)
            try:
                await self._line.establish(self._ask if by_hand else NOBODY)
            except (LinkError, ContainerError) as error:
                self._failed(error)
                failures += 1
            else:
                self._set("up")
                return

    async def _wait(self, failures: int) -> bool:
        """Wait until it is time to dial. True where a person asked for it."""
        limit_s: float | None = self._settings.backoff(failures)
        if self.link.status == "refused":
            limit_s = None
        elif self._line.interactive and self._line.connection is not None and self._line.connection.closed.done():
            # A one-time code used twice locks accounts: whoever typed it must be there.
            limit_s = None
            self._set("down", f"{self.link.reason.rstrip('.')}. The login asks for a password or code, so reconnect by hand.")
        by_hand = await self._asked_for(limit_s)
        self._by_hand.clear()
        return by_hand

    async def _asked_for(self, limit_s: float | None) -> bool:
        """Whether a person asks within ``limit_s``; after a sleep of this machine the wait is over."""
        loop = asyncio.get_running_loop()
        due = None if limit_s is None else loop.time() + limit_s
        while due is None or loop.time() < due:
            wall, timer = self._settings.clock(), loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else min(due - timer, self._settings.ping_every_s)):
                    return await self._by_hand.wait()
            if self._slept(wall, timer):
                break
        return False

    def _slept(self, wall: float, timer: float) -> bool:
        """Whether the wall clock has run away from the timer, which stands still while a machine sleeps."""
        passed_s = asyncio.get_running_loop().time() - timer
        return self._settings.clock() - wall - passed_s > self._settings.wake_jump_s

    def _failed(self, error: LinkError | ContainerError) -> None:
        # A host or workspace that cannot be one does not become one by asking again.
        refused = error.kind == "refused" if isinstance(error, LinkError) else error.code == "usage"
        self._set("refused" if refused else "down", str(error))

    def _set(self, status: LinkStatus, reason: str = "") -> None:
        if (status, reason) == (self.link.status, self.link.reason):
            return
        since = self.link.since if status == self.link.status else self._settings.clock()
        self.link = Link(status, since, reason)
        if status == "up":
            self._up.set()
        self._on_link(self.link)
