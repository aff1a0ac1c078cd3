"""The link lives on while its user stands still, and whoever uses it notices nothing of the other thread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from eagle3.core.spec import RunSpec
from remote.ask import Ask, HostKeyQuestion
from remote.container import Container, ContainerError, Link, LinkError, Settings
from remote.own_thread import OwnThread
from tests.remote.conftest import Open, Quick
from tests.remote.watching import Watch
from tests.support.sshd import Sshd
from tests.support.waiting import LIMIT_S, until

Apart = Callable[..., OwnThread]
OnLink = Callable[[Link], None]


@pytest_asyncio.fixture
async def apart() -> AsyncIterator[Apart]:
    """Makes a container in a thread of its own; it is closed at the end of the test."""
    made: list[OwnThread] = []

    def make(host: str, settings: Settings, on_link: OnLink = lambda _: None, ask: Ask | None = None) -> OwnThread:
        def container(tell: OnLink, asked: Ask) -> Container:
            return Container(host, settings=settings, on_link=tell, ask=asked)

        made.append(OwnThread(container, on_link, ask or Ask()))
        return made[-1]

    yield make
    await asyncio.gather(*(container.close() for container in made))


async def test_a_user_that_stands_still_for_longer_than_the_server_waits_keeps_the_link(
    tmp_path: Path, seed: Callable[[Path], Path], quick: Quick, opened: Open, apart: Apart, spec: RunSpec
) -> None:
    # So patient that a busy machine alone loses it no link.
    server = Sshd(tmp_path / "impatient", more_config="ClientAliveInterval 1\nClientAliveCountMax 6").start()
    seed(server.home / "eagle3")
    try:
        settings = quick(server, ping_every_s=60.0)
        inside = await opened(server.url, settings=settings)
        links: list[Link] = []
        container = apart(server.url, settings, links.append)
        await container.open()
        await container.launch(spec, "watched")
        watch = Watch(container, "watched")  # type: ignore[arg-type]
        await until(lambda: watch.rows > 3, "rows")
        helper, told = container.info["pid"], len(links)
        log, deadline = server.folder / "sshd.log", time.monotonic() + LIMIT_S
        while "Timeout, client not responding" not in log.read_text():
            # The event loop is not served: this is what a terminal that is not read does to it.
            assert time.monotonic() < deadline, "sshd never gave the other connection up"
            time.sleep(0.1)  # noqa: ASYNC251
        await until(lambda: inside.link.status != "up", "the loss of the link that shared the loop")
        assert (container.link.status, container.info["pid"], len(links)) == ("up", helper, told)
        run_dir = server.home / "eagle3" / "runs" / "watched"
        (run_dir / "finish").touch()
        await watch.end()
        watch.assert_everything_came_once_in_order(run_dir)
        assert log.read_text().count("Timeout, client not responding") == 1
    finally:
        server.stop()


async def test_questions_and_changes_of_the_link_come_into_the_users_thread(sshd: Sshd, quick: Quick, apart: Apart) -> None:
    where: list[int] = []

    async def trust(_: HostKeyQuestion) -> bool:
        where.append(threading.get_ident())
        return True

    container = apart(sshd.url, quick(sshd, trust=False), lambda _: where.append(threading.get_ident()), Ask(host_key=trust))
    await container.open()
    assert await container.runs() == []
    # On a busy machine it may be called slow to answer besides.
    await until(lambda: len(where) >= 3, "connecting, the question, up")
    assert set(where) == {threading.get_ident()}


async def test_following_ends_when_its_user_wants_and_can_begin_again(
    sshd: Sshd, quick: Quick, apart: Apart, spec: RunSpec
) -> None:
    container = apart(sshd.url, quick(sshd))
    await container.open()
    await container.launch(spec, "watched")
    for _ in range(3):
        watch = Watch(container, "watched")  # type: ignore[arg-type]
        await until(lambda watch=watch: watch.rows > 3, "rows")  # type: ignore[misc]
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch.end()
    with pytest.raises(ContainerError, match="no run"):
        await anext(container.follow("another"))
    await container.stop("watched")
    await container.close()
    with pytest.raises(LinkError, match="closed"):
        await container.runs()
    assert not any(thread.name == "link" for thread in threading.enumerate())


LEAVING = """
import asyncio, socket, threading
from pathlib import Path
from remote.ask import Ask
from remote.container import Container, Settings
from remote.own_thread import OwnThread

asked = threading.Event()

real = socket.getaddrinfo

def never(host, port, family=0, type=0, proto=0, flags=0):
    if flags & socket.AI_NUMERICHOST:
        return real(host, port, family, type, proto, flags)
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = never

async def main():
    here = Path.cwd()
    settings = Settings(state_dir=here, ssh_config=here / "none", known_hosts=here / "none")
    link = OwnThread(lambda tell, ask: Container("box", on_link=tell, ask=ask, settings=settings), print, Ask())
    opening = asyncio.create_task(link.open())
    await asyncio.to_thread(asked.wait)
    await link.close()
    opening.cancel()

asyncio.run(main())
print("left")
"""


def test_a_name_server_that_never_answers_keeps_nobody_from_leaving(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", LEAVING], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.splitlines()[-1:] == ["left"] and found.returncode == 0, found.stderr
