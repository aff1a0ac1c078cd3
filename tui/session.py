"""The one owner of the connection. It turns what the container says into messages and what the operator asks into
calls; no widget ever waits for the wire.

The session lives as long as the app, not as long as a screen. The container keeps its link up by itself; the session
keeps asking. Everything runs in tasks that ``close`` cancels, and an error nobody expected is told like any other:
it never ends the console. What is asked beside following stands in `run_calls`, `reading_calls` and `readiness_calls`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from textual.message import Message

from remote.errors import ContainerError, LinkError, NoPython
from tui import messages
from tui.formats import one_line
from tui.readiness_calls import ReadinessCalls
from tui.reading_calls import ReadingCalls
from tui.run_calls import RunCalls
from tui.session_part import RETRY_S, sentence
from tui.state import LinkState

if TYPE_CHECKING:
    from remote.ask import Ask
    from tui.ports import Connect, ContainerPort, LinkView

FOLLOW_S = 1.0
"""Seconds between two reads of the open run."""
FOLLOW_LATE_S = 3.0
"""A followed run brings the probes along; only where one is so late is it asked for alone."""
FOLLOWING = "Following the run"
CLOSE_LIMIT_S = 4.0


class Session(RunCalls, ReadingCalls, ReadinessCalls):
    """``post`` takes messages (the app's ``post_message``); ``clock`` gives this machine's Unix seconds; ``preload`` loads, in
    a thread so that the first seconds of the console stay alive, first what ``connect`` needs, and after the first answer
    what the operator's keys will need."""

    def __init__(
        self,
        connect: Connect,
        *,
        post: Callable[[Message], object],
        ask: Ask,
        clock: Callable[[], float],
        workspace: str,
        poll_s: float = 5.0,
        actor: str = "",
        preload: Sequence[Callable[[], object]] = (),
        read_only: bool = False,
    ) -> None:
        self._connect, self._post, self._ask, self._clock = connect, post, ask, clock
        self._poll_s, self._actor, self._preload = poll_s, actor, preload
        self.workspace = workspace
        self.read_only = read_only
        self.read_only_words = "this console is read-only; nothing was changed."
        self._go = asyncio.Event()
        self._go.set()
        self._container: ContainerPort | None = None
        self._impossible: ContainerError | None = None
        """Why there is no container to ask, and never will be for this host and workspace."""
        self._opened = asyncio.Event()
        self._wake = asyncio.Event()
        self._probe_due = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._secrets: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        """Connect, and go on probing for as long as the console lives."""
        self._spawn("Connecting", self._run())

    def move(self, workspace: str) -> None:
        """Look at another workspace of the same host from now on: a new connection, since the helper lives in it."""
        if workspace != self.workspace:
            self.workspace = workspace
            self._opened.clear()
            self._spawn("Connecting", self._run())

    @property
    def actor(self) -> str:
        """In whose name things are asked."""
        return self._actor

    @property
    def held(self) -> bool:
        """Whether the container is not asked for news at the moment."""
        return not self._go.is_set()

    def hold(self, held: bool) -> None:
        """Ask for no news (``held``), or go on. The link stays up, and what the operator asks for is still asked."""
        if held:
            self._go.clear()
        else:
            self._go.set()
            self._wake.set()

    def reconnect(self) -> None:
        """Dial now, and let the login ask what it has to ask."""
        if self._container is not None:
            self._container.reconnect()
        elif self._impossible is not None:
            self._spawn("Connecting", self._run())
        self._wake.set()

    def follow(self, run_id: str) -> None:
        """Follow this run, and no other."""
        self._spawn(FOLLOWING, self._follow(run_id))

    def unfollow(self) -> None:
        """Follow no run: nobody looks at it at the moment."""
        if task := self._tasks.get(FOLLOWING):
            task.cancel()
        if self._container is not None:
            self._container.watch("")

    def pace(self, poll_s: float) -> None:
        """Seconds between two probes from now on; a shorter pace begins with one."""
        sooner, self._poll_s = poll_s < self._poll_s, poll_s
        if sooner:
            self._probe_due = 0.0
            self._wake.set()

    def aside(self, what: str, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        """Do ``work`` in a thread, and ``then`` here with what it gave."""

        async def done() -> None:
            then(await asyncio.to_thread(work))

        self._spawn(what, done())

    async def close(self) -> None:
        """End every task and the connection; runs go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop()

    async def _drop(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            with contextlib.suppress(LinkError, ContainerError, TimeoutError):  # going away: nobody is left to tell
                await asyncio.wait_for(container.close(), CLOSE_LIMIT_S)

    def _change(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """As `_spawn`, for what changes something: never done by a console that may only look."""
        if self.read_only:
            work.close()
            self._post(messages.AskFailed(what, self.read_only_words))
        else:
            self._spawn(what, work)

    def _spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        if old := self._tasks.get(what):
            old.cancel()
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        self._tasks[what] = asyncio.create_task(self._guard(what, work), name=f"session: {what}")

    async def _guard(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(what, sentence(error)))
        except Exception as error:  # noqa: BLE001 - told to the operator, with its kind; the console goes on
            text = f"the console met an error of its own: {type(error).__name__}: {error}"
            self._post(messages.AskFailed(what, one_line(text)))

    def _link_changed(self, link: LinkView) -> None:
        self._post(messages.LinkChanged(LinkState.of(link)))
        if link.status == "up":
            self._wake.set()

    async def _run(self) -> None:
        self._post(messages.LinkChanged(LinkState("connecting", self._clock())))
        for load in self._preload[:1]:
            await asyncio.to_thread(load)
        await self._drop()
        try:
            self._container = self._connect(self._link_changed, self._ask, self.workspace)
        except ContainerError as error:
            # What was asked for cannot be dialled at all: a mistake in the host or the workspace.
            self._post(messages.LinkChanged(LinkState("refused", self._clock(), sentence(error))))
            self._impossible = error
            self._opened.set()  # nobody waits for it
            return
        self._impossible = None
        try:
            await self._container.open(persist=True)
        except (LinkError, ContainerError) as error:
            if isinstance(error, NoPython):
                self._post(messages.BareProbeArrived(error.probe, self._clock()))
            self._post(messages.ProbeFailed(sentence(error)))
        self._opened.set()
        loads = list(self._preload[1:])
        while True:
            await self._go.wait()
            await self._probe(self._container)
            while loads:
                await asyncio.to_thread(loads.pop(0))
            await self._until_probe_due()

    async def _until_probe_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._wake.is_set() and (left_s := self._probe_due - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):  # the usual end of a pause; the news may have moved the next one on
                await asyncio.wait_for(self._wake.wait(), left_s)
        self._wake.clear()

    async def _probe(self, container: ContainerPort) -> None:
        try:
            probe = await container.probe()
        except (LinkError, ContainerError) as error:
            self._post(messages.ProbeFailed(sentence(error)))
        else:
            self._post(messages.ProbeArrived(probe, self._clock()))
        self._probe_due = asyncio.get_running_loop().time() + self._poll_s

    async def _ready(self) -> ContainerPort:
        await self._opened.wait()
        if self._container is None:
            raise self._impossible or ContainerError("usage", "The console is not connected.")
        return self._container

    async def _follow(self, run_id: str) -> None:
        tries = 0
        while True:
            fresh = True
            try:
                # Asked for at each try: another workspace brings another container.
                container = await self._ready()
                container.watch(run_id)
                async with contextlib.aclosing(container.follow(run_id, poll_s=FOLLOW_S, probe_s=self._poll_s)) as following:
                    async for news in following:
                        if container is not self._container or not self._opened.is_set():
                            break  # another workspace was asked for meanwhile: these are news of the one before
                        tries = 0
                        if news.probe is not None:
                            self._post(messages.ProbeArrived(news.probe, self._clock()))
                            self._probe_due = asyncio.get_running_loop().time() + self._poll_s + FOLLOW_LATE_S
                        self._post(messages.NewsArrived(run_id, news, self._clock(), fresh))
                        fresh = False
                        await self._go.wait()
                    else:
                        return
            except (LinkError, ContainerError) as error:
                self._post(messages.FollowFailed(run_id, sentence(error)))
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1
