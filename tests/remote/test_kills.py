"""``kill -9`` of the console, of the helper, of the session's sshd, each while following, launching and stopping.

The run lives on, is described as what it is, has one start, and a follower gets every row once.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from eagle3.core.spec import RunSpec
from remote.container import Container, Settings
from tests.remote.conftest import FAKE_WORKER, Open, Quick
from tests.remote.watching import Watch, attempts, starts
from tests.support.sshd import Sshd
from tests.support.waiting import until

CONSOLE = Path(__file__).with_name("a_console.py")
MOMENTS = ("following", "launching", "stopping")
SEED = 1
"""Draws how long after its moment a kill comes, up to ``LATEST_S``."""
LATEST_S = 0.15

Kill = Callable[[], None]


@pytest.fixture
def settings(sshd: Sshd, quick: Quick) -> Settings:
    return quick(sshd, ping_every_s=1.0, backoff_first_s=0.02, backoff_most_s=0.1)


@pytest_asyncio.fixture
async def container(sshd: Sshd, settings: Settings, opened: Open) -> AsyncIterator[Container]:
    """A console that stays, to look at what the killed one left."""
    yield await opened(sshd.url, settings=settings)


def moment_of(run_dir: Path, moment: str) -> Callable[[], bool]:
    """What is on disk when the moment has come."""
    if moment == "launching":
        return (run_dir / "attempts" / "1").exists
    if moment == "stopping":
        return (run_dir / "stop.json").exists
    return lambda: (run_dir / "metrics.jsonl").exists() and starts(run_dir) == 1


def drawn_delay_s(victim: str, moment: str) -> float:
    return random.Random(f"{SEED} {victim} {moment}").uniform(0.0, LATEST_S)


async def assert_well(container: Container, run_dir: Path, moment: str, watch: Watch | None = None) -> None:
    """The run goes on (or has been stopped), once, and all of it can be read."""
    run_id = run_dir.name
    await until((run_dir / "metrics.jsonl").exists, "the first row")
    watch = watch or Watch(container, run_id)
    if moment == "stopping":
        await until((run_dir / "attempts" / "1" / "exit.json").exists, "the end")
    else:
        rows = (run_dir / "metrics.jsonl").stat().st_size
        await until(lambda: (run_dir / "metrics.jsonl").stat().st_size > rows, "rows after the kill")
        summary = await container.summary(run_id)
        assert (summary.state, summary.attempt, summary.actor) == ("running", 1, "ada")
        (run_dir / "finish").touch()
    await watch.end()
    watch.assert_everything_came_once_in_order(run_dir)
    assert (attempts(run_dir), starts(run_dir)) == (["1"], 1)
    last = watch.news[-1].summary
    assert (last.state, last.stop_by) == (("stopped", "grace") if moment == "stopping" else ("finished", None))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["helper", "sshd"])
async def test_the_run_and_its_follower_live_on_when_a_process_between_them_is_killed(
    sshd: Sshd, container: Container, spec: RunSpec, victim: str, moment: str
) -> None:
    run_dir = sshd.home / "eagle3" / "runs" / "kept"
    asking: asyncio.Task[object] = asyncio.create_task(container.launch(spec, "kept", actor="ada"))
    watch = None
    if moment != "launching":
        await asking
        watch = Watch(container, "kept")
        await until(lambda: watch.rows > 3, "rows")
    if moment == "stopping":
        asking = asyncio.create_task(container.stop("kept", actor="grace"))
    await until(moment_of(run_dir, moment), moment)
    await asyncio.sleep(drawn_delay_s(victim, moment))
    for pid in [container.info["pid"]] if victim == "helper" else sshd.sessions():
        os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(asking, 60)
    await assert_well(container, run_dir, moment, watch)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_run_lives_on_when_its_console_is_killed(
    sshd: Sshd, container: Container, settings: Settings, spec: RunSpec, moment: str
) -> None:
    run_dir = sshd.home / "eagle3" / "runs" / "kept"
    if moment == "stopping":
        await container.launch(spec, "kept", actor="ada")
    verb = "stop" if moment == "stopping" else "launch"
    places = [str(settings.state_dir), str(settings.ssh_config), str(settings.known_hosts)]
    console = await asyncio.create_subprocess_exec(
        sys.executable, str(CONSOLE), sshd.url, *places, verb, "kept", str(FAKE_WORKER),
        stdout=asyncio.subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        await until(moment_of(run_dir, moment), moment)
        await asyncio.sleep(drawn_delay_s("console", moment))
    finally:
        console.kill()
        await console.wait()
    await assert_well(container, run_dir, moment)
    await until(lambda: len(sshd.sessions()) == 1, "the killed console's session to end")
