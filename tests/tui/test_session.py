"""The session: whoever asks again asks the container that is there now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from remote.ask import Ask
from remote.errors import LinkError
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
        failed = await arrived(messages.FollowFailed)
        await arrived(messages.NewsArrived, failed)
        assert len(made) == 2 and made[0].closed and not made[1].closed
    finally:
        await session.close()
