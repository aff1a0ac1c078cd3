"""The session: whoever asks again asks the container that is there now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from remote.ask import Ask
from remote.errors import ContainerError, LinkError
from tests.support.waiting import until
from tests.tui.conftest import Clock
from tests.tui.support.container import FakeContainer
from tests.tui.support.folders import write_run
from tui import messages
from tui.session import Session


class Closable(FakeContainer):
    """Following it after it was closed fails, as with the real one."""

    async def follow(self, run_id: str, poll_s: float = 1.0, probe_s: float | None = None) -> AsyncIterator[Any]:
        async for news in super().follow(run_id, poll_s, probe_s):
            if self.closed:
                raise LinkError("unreachable", "this machine is not connected: closed")
            yield news


async def test_following_goes_on_in_the_container_that_a_move_has_made(tmp_path: Path, clock: Clock) -> None:
    write_run(tmp_path, "run-a")
    made: list[Closable] = []
    posted: list[Any] = []

    def connect(on_link: Any, ask: Ask, workspace: str) -> Closable:
        made.append(Closable(tmp_path))
        return made[-1]

    session = Session(connect, post=posted.append, ask=Ask(), clock=clock, poll_s=0.05, workspace="/a")
    session.start()
    session.follow("run-a")

    async def arrived(kind: type[Any], after: int = 0) -> int:
        await until(lambda: any(isinstance(message, kind) for message in posted[after:]), kind.__name__)
        return len(posted)

    try:
        await arrived(messages.NewsArrived)
        session.move("/b")
        # Whether the first one's following fails before it is left for the move is chance; that it is gone is not.
        await until(lambda: len(made) == 2, "another container")
        await arrived(messages.NewsArrived, len(posted))
        assert made[0].closed and not made[1].closed
    finally:
        await session.close()


class Slow(FakeContainer):
    """Its stops wait until they may be answered."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_answer = asyncio.Event()

    async def stop(self, run_id: str, mode: Any = "now", actor: str = "") -> dict[str, Any]:
        await self.may_answer.wait()
        return await super().stop(run_id, mode, actor)


async def test_the_stop_of_one_run_does_not_take_the_place_of_anothers(tmp_path: Path, clock: Clock) -> None:
    """A stop may wait for a link that is down; before, the next one cancelled it without a word."""
    for run_id in ("run-a", "run-b"):
        write_run(tmp_path, run_id)
    slow, posted = Slow(tmp_path), list[Any]()
    session = Session(slow, post=posted.append, ask=Ask(), clock=clock, poll_s=0.05, workspace="/a")
    session.start()
    try:
        session.stop("run-a", "now")
        session.stop("run-b", "after-checkpoint")
        slow.may_answer.set()
        await until(lambda: len(slow.stops) == 2, "both stops")
        assert slow.stops == [("run-a", "now"), ("run-b", "after-checkpoint")]
    finally:
        await session.close()


async def test_where_there_can_be_no_container_what_is_asked_is_refused_and_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    made: list[str] = []

    def connect(on_link: Any, ask: Ask, workspace: str) -> FakeContainer:
        made.append(workspace)
        raise ContainerError("usage", "The workspace 'runs' is no path.", "Give one that begins with / or ~/.")

    posted: list[Any] = []
    session = Session(connect, post=posted.append, ask=Ask(), clock=clock, workspace="runs")
    session.start()
    try:
        session.save_notes("run-a", "", "typed")
        session.resume("run-a")
        session.follow("run-a")
        await until(
            lambda: {type(m) for m in posted} >= {messages.NotesFailed, messages.AskFailed, messages.FollowFailed}, "them"
        )
        [failed] = [message for message in posted if isinstance(message, messages.AskFailed)]
        assert failed.what == "Launching" and "is no path. Give one" in failed.text
        session.reconnect()
        await until(lambda: len(made) == 2, "another try")
    finally:
        await session.close()
