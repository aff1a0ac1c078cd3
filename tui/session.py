"""The one owner of the connection. It turns what the container says into messages and what the operator asks into
calls; no widget ever waits for the wire.

The session lives as long as the app, not as long as a screen. Everything it does runs in tasks that it cancels in
``close``; an error nobody expected is told like any other and never ends the console.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from textual.message import Message

from eagle3.core.spec import RunSpec
from remote.ask import Ask
from remote.errors import ContainerError, LinkError
from tui import messages
from tui.formats import one_line
from tui.ports import Connect, ContainerPort, LinkView
from tui.state import LinkState

FOLLOW_S = 1.0
"""Seconds between two reads of the open run."""
RETRY_S = (1.0, 2.0, 5.0, 10.0, 20.0)
LAUNCH_TRIES = 5
PROBE_LIMIT_S = 60.0
CLOSE_LIMIT_S = 3.0


def sentence(error: LinkError | ContainerError) -> str:
    """An error as one line: what is wrong, and the next step where one is given."""
    remedy = getattr(error, "remedy", "")
    return one_line(f"{error.text} {remedy}" if remedy else error.text)


class Session:
    """``post`` takes messages (the app's ``post_message``); ``clock`` gives this machine's Unix seconds."""

    def __init__(
        self,
        connect: Connect,
        *,
        post: Callable[[Message], object],
        ask: Ask,
        clock: Callable[[], float],
        poll_s: float = 5.0,
        actor: str = "",
    ) -> None:
        self._connect, self._post, self._ask, self._clock = connect, post, ask, clock
        self.poll_s, self.actor = poll_s, actor
        self._container: ContainerPort | None = None
        self._up = asyncio.Event()
        self._wake = asyncio.Event()
        self._reconnect = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Connect, and go on probing for as long as the console lives."""
        self._spawn("link", self._run())

    def reconnect(self) -> None:
        """Drop the connection and make a new one now."""
        self._reconnect = True
        self._wake.set()

    def poll_now(self) -> None:
        """Probe without waiting for the next turn."""
        self._wake.set()

    def follow(self, run_id: str) -> None:
        """Follow this run, and no other."""
        self._spawn("follow", self._follow(run_id))

    def launch(self, spec: RunSpec, run_id: str, *, resume: bool = False) -> None:
        """Launch or resume. ``run_id`` makes asking again harmless, so a broken link is waited out and asked again."""
        self._spawn("ask", self._launch(spec, run_id, resume))

    def resume(self, run_id: str) -> None:
        """Go on with a run under the spec that it was started with."""
        self._spawn("ask", self._resume(run_id))

    def stop(self, run_id: str, mode: str) -> None:
        """Stop a run: "now" or "after-checkpoint"."""
        self._spawn("ask-stop", self._stop(run_id, mode))

    async def close(self) -> None:
        """End every task and the connection; runs go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop()

    # --- the link

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if old := self._tasks.get(name):
            old.cancel()
        task = asyncio.create_task(self._guard(name, work), name=f"session-{name}")
        self._tasks[name] = task

    async def _guard(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told to the operator, with its kind; the console goes on
            self._post(
                messages.AskFailed(name, one_line(f"The console met an error of its own: {type(error).__name__}: {error}"))
            )

    def _link_changed(self, link: LinkView) -> None:
        if link.status in {"up", "degraded"} and self._container is not None:
            self._up.set()
        else:
            self._up.clear()
        self._post(messages.LinkChanged(LinkState.of(link)))

    async def _run(self) -> None:
        tries = 0
        while True:
            self._post(messages.LinkChanged(LinkState("connecting", self._clock())))
            error = await self._open()
            if error is None:
                tries = 0
                await self._poll()
                await self._drop()
                continue
            refused = error.kind == "refused"
            self._post(messages.LinkChanged(LinkState("refused" if refused else "down", self._clock(), sentence(error))))
            # A refusal needs a person; asking again would only lock the account.
            await self._pause(None if refused else RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1
            self._reconnect = False

    async def _open(self) -> LinkError | None:
        container = self._connect(self._link_changed, self._ask)
        try:
            await container.open()
        except LinkError as error:
            with contextlib.suppress(LinkError, TimeoutError):  # it never opened: there is nothing to lose
                await asyncio.wait_for(container.close(), CLOSE_LIMIT_S)
            return error
        except ContainerError as error:
            await container.close()
            return LinkError("unreachable", sentence(error))
        self._container = container
        self._up.set()
        self._post(messages.LinkChanged(LinkState.of(container.link)))
        return None

    async def _drop(self) -> None:
        container, self._container = self._container, None
        self._up.clear()
        self._reconnect = False
        if container is not None:
            with contextlib.suppress(LinkError, TimeoutError):  # going away: a lost link is closed already
                await asyncio.wait_for(container.close(), CLOSE_LIMIT_S)

    async def _poll(self) -> None:
        container = self._container
        while container is not None and not self._reconnect:
            try:
                probe = await asyncio.wait_for(container.probe(), PROBE_LIMIT_S)
            except (LinkError, ContainerError) as error:
                self._post(messages.ProbeFailed(sentence(error)))
            except TimeoutError:
                self._post(messages.ProbeFailed(f"No answer for {PROBE_LIMIT_S:.0f} s; Ctrl+r connects again."))
            else:
                self._up.set()
                self._post(messages.ProbeArrived(probe, self._clock()))
            await self._pause(self.poll_s)

    async def _pause(self, seconds: float | None) -> None:
        """Wait so long, or until woken."""
        with contextlib.suppress(TimeoutError):  # the usual end of a pause
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _ready(self) -> ContainerPort:
        """The container once the link is up; waits for it."""
        while True:
            await self._up.wait()
            if self._container is not None:
                return self._container
            self._up.clear()

    # --- runs

    async def _follow(self, run_id: str) -> None:
        tries = 0
        while True:
            container = await self._ready()
            fresh = True
            try:
                async for news in container.follow(run_id, poll_s=FOLLOW_S):
                    tries = 0
                    self._post(messages.NewsArrived(run_id, news, self._clock(), fresh))
                    fresh = False
                return
            except (LinkError, ContainerError) as error:
                self._post(messages.FollowFailed(run_id, sentence(error)))
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    async def _launch(self, spec: RunSpec, run_id: str, resume: bool) -> None:
        what = f"{'Resuming' if resume else 'Launching'} {run_id}"
        for tries in range(LAUNCH_TRIES):
            container = await self._ready()
            try:
                ack = await container.launch(spec, run_id, self.actor, resume=resume)
            except LinkError as error:
                if error.kind == "refused" or tries == LAUNCH_TRIES - 1:
                    self._post(messages.AskFailed(what, sentence(error)))
                    return
                self._post(messages.AskAgain(what, sentence(error)))
                await asyncio.sleep(RETRY_S[tries])
            except ContainerError as error:
                self._post(messages.AskFailed(what, sentence(error)))
                return
            else:
                self._post(messages.Launched(run_id, ack, resume))
                self.poll_now()
                return

    async def _resume(self, run_id: str) -> None:
        container = await self._ready()
        try:
            spec = await container.spec(run_id)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Resuming {run_id}", sentence(error)))
            return
        await self._launch(spec, run_id, True)

    async def _stop(self, run_id: str, mode: str) -> None:
        container = await self._ready()
        try:
            await container.stop(run_id, mode, self.actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Stopping {run_id}", sentence(error)))
        else:
            self._post(messages.Stopping(run_id, mode))
            self.poll_now()
