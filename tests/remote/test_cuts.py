"""The line is cut at every kind of message, before it and in its middle, in both directions: nothing is lost or doubled.

The bytes are those of a real sshd, so where a message lies is measured on a first connection and the cut within it is
drawn from a seed. A failure names the seed, the message and the byte.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from eagle3.core.spec import RunSpec
from remote.bundle import bundle
from remote.container import Container, ContainerError, LinkError
from tests.remote.conftest import Open, Quick
from tests.remote.watching import Watch, attempts, starts
from tests.support.proxy import Direction, FaultProxy
from tests.support.sshd import Sshd
from tests.support.waiting import until

# Some twenty connects each: a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

DRAWS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
"""Seeds of the cuts; the ones after the first run in make test-long."""
DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")

Bytes = dict[Direction, int]
WINDOWS_BYTES = 400
"""By so much less may come back from one upload than from another: the server opens its window for each 96 KiB of it, or for many
at once, as it comes to reading."""


@dataclass
class Cell:
    """A cut: so many bytes after the beginning of a connection (or of what is asked)."""

    seed: int
    message: str
    direction: Direction
    byte: int

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.message}, {self.direction}, byte {self.byte}"


def cells(seed: int, spans: dict[str, tuple[Bytes, Bytes]], inside: int = 1) -> Iterator[Cell]:
    """For each message and direction the byte before it and ``inside`` bytes of it."""
    draw = random.Random(seed)
    for message, (begin, end) in spans.items():
        for direction in DIRECTIONS:
            first, last = begin[direction], max(begin[direction] + 2, end[direction])
            for byte in (first, *(draw.randrange(first + 1, last) for _ in range(inside))):
                yield Cell(seed, message, direction, byte)


@pytest_asyncio.fixture
async def proxy(sshd: Sshd) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(sshd.port) as started:
        yield started


@pytest.fixture
def reach(sshd: Sshd, proxy: FaultProxy, quick: Quick, via: Callable[[int], str]) -> dict[str, Any]:
    # Only what is meant to be cut goes over the line: no pings.
    settings = quick(sshd, port=proxy.port, ping_every_s=60.0, backoff_first_s=0.02, backoff_most_s=0.1)
    return {"host": via(proxy.port), "settings": settings}


async def spans_of_a_connect(container: Container, proxy: FaultProxy) -> dict[str, tuple[Bytes, Bytes]]:
    """Which bytes of a connection are the greeting and the login, the helper's start and hello, and the first probe."""
    marks: list[Bytes] = [dict.fromkeys(DIRECTIONS, 0)]
    start = container._line._start

    async def marked(connection: Any) -> Any:
        marks.append(dict(proxy.passed))
        return await start(connection)

    container._line._start = marked  # type: ignore[method-assign]
    await container.open()
    marks.append(dict(proxy.passed))
    await container.probe()
    marks.append(dict(proxy.passed))
    container._line._start = start  # type: ignore[method-assign]
    return dict(zip(("greeting and login", "start and hello", "probe"), itertools.pairwise(marks), strict=True))


@pytest.mark.parametrize("draw", DRAWS)
async def test_cuts_while_following_lose_and_repeat_nothing(
    sshd: Sshd, proxy: FaultProxy, reach: dict[str, Any], spec: RunSpec, draw: int
) -> None:
    container = Container(**reach)
    try:
        spans = await spans_of_a_connect(container, proxy)
        run_dir = Path((await container.launch(spec, "followed"))["run_dir"])
        watch = Watch(container, "followed")
        await until(lambda: watch.rows > 3, "the first rows")
        for cell in cells(draw, spans):
            happened = proxy.cut(cell.direction, cell.byte)
            proxy.abort()  # so that the next connection is the one that meets the cut
            await until(happened.is_set, f"the cut ({cell})")
            seen = watch.rows
            await until(lambda seen=seen: watch.rows > seen, f"rows after the cut ({cell})")  # type: ignore[misc]
        ask = dict.fromkeys(DIRECTIONS, 0), dict.fromkeys(DIRECTIONS, 250)
        for cell in cells(draw, {"poll and its answer": ask}, inside=4):
            happened = proxy.cut(cell.direction, cell.byte)
            await until(happened.is_set, f"the cut ({cell})")
            seen = watch.rows
            await until(lambda seen=seen: watch.rows > seen, f"rows after the cut ({cell})")  # type: ignore[misc]
        (run_dir / "finish").touch()
        await watch.end()
        watch.assert_everything_came_once_in_order(run_dir)
        assert watch.news[-1].summary.state == "finished"
        assert (attempts(run_dir), starts(run_dir)) == (["1"], 1)
        assert container.uploads == 0
    finally:
        await container.close()


@pytest.mark.parametrize("draw", DRAWS)
async def test_cuts_while_a_run_is_launched_and_stopped_give_one_start_and_one_end(
    sshd: Sshd, proxy: FaultProxy, reach: dict[str, Any], opened: Open, spec: RunSpec, draw: int
) -> None:
    container = await opened(**reach)
    sizes = dict.fromkeys(DIRECTIONS, 0), {"to_server": 900, "to_client": 250}
    for number, cell in enumerate(cells(draw, {"launch": sizes})):
        run_id = f"run-{number}"
        happened = proxy.cut(cell.direction, cell.byte)
        ack = await container.launch(spec, run_id, actor="ada")
        assert happened.is_set(), cell
        run_dir = Path(ack["run_dir"])
        await until(lambda run_dir=run_dir: (run_dir / "metrics.jsonl").exists(), f"rows ({cell})")  # type: ignore[misc]
        assert (ack["attempt"], attempts(run_dir), starts(run_dir)) == (1, ["1"], 1), cell

        stop = Cell(draw, "stop", cell.direction, cell.byte // 6)  # a stop is a shorter message than a launch
        happened = proxy.cut(stop.direction, stop.byte)
        await container.stop(run_id, actor="grace")
        assert happened.is_set(), stop
        await until(lambda run_dir=run_dir: (run_dir / "attempts/1/exit.json").exists(), f"the end ({stop})")  # type: ignore[misc]
        summary = await container.summary(run_id)
        assert (summary.state, summary.stop_by, attempts(run_dir)) == ("stopped", "grace", ["1"]), stop


@pytest.mark.parametrize("draw", DRAWS)
async def test_cuts_while_the_helper_is_uploaded_leave_nothing_half_and_the_next_connect_mends_it(
    sshd: Sshd, proxy: FaultProxy, reach: dict[str, Any], draw: int
) -> None:
    spans: dict[str, tuple[Bytes, Bytes]] = {}
    begun = Container(**reach, workspace="~/first")
    await begun.open()
    whole = dict(proxy.passed)
    await begun.close()
    # The login is a few KiB each way; most of the rest is the upload, and its answer.
    sure: Bytes = {**whole, "to_client": whole["to_client"] - WINDOWS_BYTES}
    spans["upload"] = {"to_server": 8_000, "to_client": whole["to_client"] - 900}, sure
    for number, cell in enumerate(cells(draw, spans)):
        lib = sshd.home / f"place-{number}" / "lib"
        container = Container(**reach, workspace=f"~/place-{number}")
        try:
            happened = proxy.cut(cell.direction, cell.byte)
            with pytest.raises((LinkError, ContainerError)):
                await container.open(persist=True)
            assert happened.is_set(), cell
            await until(lambda c=container: c.link.status == "up", f"the link after the cut ({cell})")  # type: ignore[misc]
            assert [path.name for path in lib.iterdir() if not path.name.startswith(".")] == [bundle().version], cell
            assert await container.runs() == []
        finally:
            await container.close()
