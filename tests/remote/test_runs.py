"""A run over the wire: launched, left alone, found again, followed without a gap, stopped."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import RunSpec
from remote.container import Container, ContainerError, Link, LinkError, RunNews
from tests.remote.conftest import Open, Quick
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd
from tests.support.waiting import until


@pytest.fixture(params=["sshd", "local"])
def reach(request: pytest.FixtureRequest, quick: Quick, tmp_path: Path, seed: Callable[[Path], Path]) -> dict[str, Any]:
    """How to reach each kind of container: arguments of `Container`."""
    if request.param == "local":
        return {"local": True, "workspace": str(seed(tmp_path / "workspace")), "settings": quick()}
    server: Sshd = request.getfixturevalue("bare_sshd")
    seed(server.home / "work space")
    return {"host": server.url, "workspace": "~/work space", "settings": quick(server)}


async def gather(container: Container, run_id: str, news: list[RunNews]) -> None:
    async for piece in container.follow(run_id, poll_s=0.05):
        news.append(piece)


def steps(news: list[RunNews]) -> list[int]:
    return [row.step for piece in news for row in piece.rows]


async def test_a_run_is_launched_followed_to_its_end_and_every_row_comes_once(
    reach: dict[str, Any], opened: Open, spec: RunSpec
) -> None:
    container = await opened(**reach)
    ack = await container.launch(spec, "first", actor="ada")
    news: list[RunNews] = []
    following = asyncio.create_task(gather(container, "first", news))
    await until(lambda: len(steps(news)) >= 10, "ten rows")
    (Path(ack["run_dir"]) / "finish").touch()
    await asyncio.wait_for(following, 30)

    written = (Path(ack["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    assert steps(news) == list(range(1, len(written) + 1))
    assert news[-1].summary.state == "finished"
    assert news[-1].summary.actor == "ada"
    assert news[-1].summary.label == {"size": "smoke", "target": "smollm2-135m", "machine": "cpu"}
    assert news[-1].result is not None and news[-1].result.verdict == "useful"
    assert [event.text for piece in news for event in piece.events if event.kind == "start"] == ["attempt 1 started"]
    log = "".join(piece.log for piece in news)
    assert log.splitlines() == [f"step {step}" for step in range(1, len(written) + 1)]
    assert news[-1].unreadable == 0


async def test_who_looks_at_a_run_that_is_asked_nothing_is_told_with_its_name(
    opened: Open, quick: Quick, seed: Callable[[Path], Path], tmp_path: Path
) -> None:
    # No pings: one that was sent before the change tells the run of before, and may be taken up after the question.
    container = await opened(local=True, workspace=str(seed(tmp_path / "workspace")), settings=quick(ping_every_s=60.0))
    for run_id in ("ended", ""):
        container.watch(run_id)
        assert [watcher.watching for watcher in (await container.probe()).watchers] == [run_id]


async def test_launching_twice_gives_the_first_run(reach: dict[str, Any], opened: Open, spec: RunSpec) -> None:
    container = await opened(**reach)
    first = await container.launch(spec, "once", actor="ada")
    second = await container.launch(spec, "once", actor="ada")
    assert (first["already"], second["already"]) == (False, True)
    assert first["started"] == second["started"]
    await container.stop("once")


async def test_a_run_is_stopped_and_says_by_whom(reach: dict[str, Any], opened: Open, spec: RunSpec) -> None:
    container = await opened(**reach)
    await container.launch(spec, "halted")
    news: list[RunNews] = []
    following = asyncio.create_task(gather(container, "halted", news))
    await until(lambda: len(steps(news)) > 0, "a row")
    await container.stop("halted", actor="grace")
    await asyncio.wait_for(following, 30)
    assert news[-1].summary.state == "stopped"
    assert news[-1].summary.stop_by == "grace"


async def test_a_resumed_attempt_replaces_the_rows_that_it_repeats(reach: dict[str, Any], opened: Open, spec: RunSpec) -> None:
    container = await opened(**reach)
    ack = await container.launch(spec, "again")
    news: list[RunNews] = []
    following = asyncio.create_task(gather(container, "again", news))
    await until(lambda: len(steps(news)) >= 6, "six rows")
    await container.stop("again")
    await asyncio.wait_for(following, 30)
    resumed = await container.launch(spec, "again", resume=True)
    assert resumed["attempt"] == 2
    repeated = await container.launch(spec, "again", resume=True)
    assert (repeated["attempt"], repeated["already"]) == (2, True)
    (Path(ack["run_dir"]) / "finish").touch()

    later: list[RunNews] = []
    await asyncio.wait_for(gather(container, "again", later), 30)
    best = {row.step: row.attempt for piece in later for row in piece.rows}
    assert later[-1].summary.attempt == 2
    assert sorted(best) == list(range(1, max(best) + 1))
    assert "run.log" not in later[0].reset


async def test_the_headless_command_there_runs_with_the_uploaded_package(reach: dict[str, Any], opened: Open) -> None:
    container = await opened(**reach)
    output = await container.eagle3("spec", "--size", "nosuch size", python=sys.executable)
    assert output.code == 2, output.err
    output = await container.eagle3("ls", "--workspace", "/nonexistent place", python=sys.executable)
    assert output.code == 0, output.err


async def test_an_unknown_run_is_said_to_be_unknown(reach: dict[str, Any], opened: Open) -> None:
    container = await opened(**reach)
    with pytest.raises(ContainerError) as caught:
        await container.summary("nothing")
    assert caught.value.code == "not_found"


async def test_the_run_goes_on_without_a_link_and_a_new_console_loses_no_row(
    sshd: Sshd, quick: Quick, opened: Open, spec: RunSpec, via: Callable[[int], str]
) -> None:
    async with FaultProxy(sshd.port) as proxy:
        settings = quick(sshd, port=proxy.port)
        first = await opened(via(proxy.port), settings=settings)
        ack = await first.launch(spec, "kept")
        metrics = Path(ack["run_dir"]) / "metrics.jsonl"
        await until(metrics.exists, "the first row")
        proxy.mode = "swallow"
        proxy.abort()
        lines = len(metrics.read_text().splitlines())
        await until(lambda: len(metrics.read_text().splitlines()) > lines + 5, "rows while nobody is connected")
        proxy.mode = "pass"

    second = await opened(sshd.url, settings=quick(sshd))
    assert [run.run_id for run in await second.runs()] == ["kept"]
    assert second.uploads == 0
    news: list[RunNews] = []
    following = asyncio.create_task(gather(second, "kept", news))
    await until(lambda: len(steps(news)) > lines + 5, "the rows of the time without a link")
    await second.stop("kept")
    await asyncio.wait_for(following, 30)
    assert steps(news) == list(range(1, len(metrics.read_text().splitlines()) + 1))


async def test_following_survives_resets_and_silence_without_losing_or_repeating_a_row(
    sshd: Sshd, quick: Quick, opened: Open, spec: RunSpec, via: Callable[[int], str]
) -> None:
    links: list[Link] = []
    async with FaultProxy(sshd.port) as proxy:
        settings = quick(sshd, port=proxy.port)
        container = await opened(via(proxy.port), settings=settings, on_link=links.append)
        ack = await container.launch(spec, "cut")
        news: list[RunNews] = []
        following = asyncio.create_task(gather(container, "cut", news))
        for _ in range(2):
            seen = len(steps(news))
            await until(lambda seen=seen: len(steps(news)) > seen + 3, "rows")  # type: ignore[misc]
            proxy.abort()
            await until(lambda: container.link.status != "up", "the loss to be noticed")
            await until(lambda: container.link.status == "up", "the link to come back")
        proxy.mode = "swallow"
        await until(lambda: any(link.status == "degraded" for link in links), "silence to be noticed")
        await until(lambda: container.link.status == "down", "the silent connection to be given up")
        assert container.link.reason
        proxy.mode = "pass"
        proxy.abort()
        await until(lambda: container.link.status == "up", "the link to come back after silence")
        (Path(ack["run_dir"]) / "finish").touch()
        await asyncio.wait_for(following, 60)
        written = (Path(ack["run_dir"]) / "metrics.jsonl").read_text().splitlines()
        assert steps(news) == list(range(1, len(written) + 1))
        assert news[-1].summary.state == "finished"


async def test_a_launch_whose_answer_was_lost_starts_one_run(
    sshd: Sshd, quick: Quick, opened: Open, spec: RunSpec, via: Callable[[int], str]
) -> None:
    async with FaultProxy(sshd.port) as proxy:
        settings = quick(sshd, port=proxy.port)
        container = await opened(via(proxy.port), settings=settings)
        launching = asyncio.create_task(container.launch(spec, "single"))
        run_dir = sshd.home / "eagle3" / "runs" / "single"
        await until((run_dir / "attempts" / "1").exists, "the claim")
        proxy.abort()
        ack = await launching
        assert ack["attempt"] == 1
        assert [attempt.name for attempt in (run_dir / "attempts").iterdir()] == ["1"]
        await container.stop("single")


async def test_a_helper_that_dies_is_started_again_over_the_same_connection(
    sshd: Sshd, quick: Quick, opened: Open, via: Callable[[int], str]
) -> None:
    async with FaultProxy(sshd.port) as proxy:
        # No pings: on a busy machine a late answer to them would count as a lost connection.
        settings = quick(sshd, port=proxy.port, ping_every_s=60.0)
        container = await opened(via(proxy.port), settings=settings)
        pid = container.info["pid"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: container.info["pid"] != pid and container.link.status == "up", "another helper")
        assert await container.runs() == []
        assert proxy.connections == 1


async def test_a_launch_asked_for_before_the_host_was_ever_reached_waits_for_it(sshd: Sshd, quick: Quick, spec: RunSpec) -> None:
    sshd.stop()
    container = Container(sshd.url, settings=quick(sshd))
    try:
        with pytest.raises(LinkError, match="refuses connections"):
            await container.open(persist=True)
        launching = asyncio.create_task(container.launch(spec, "early"))
        await until(lambda: container.link.status == "down" and not launching.done(), "the first failure to be known")
        sshd.start()
        ack = await launching
        (Path(ack["run_dir"]) / "finish").touch()
        assert (ack["run_id"], ack["already"]) == ("early", False)
    finally:
        await container.close()


async def test_a_second_operator_sees_who_watches_which_run(reach: dict[str, Any], opened: Open, spec: RunSpec) -> None:
    first, second = await opened(**reach), await opened(**reach)
    ack = await first.launch(spec, "first", actor="ada")
    news: list[RunNews] = []
    following = asyncio.create_task(gather(first, "first", news))

    async def watched() -> bool:
        return {(w.actor, w.watching) for w in (await second.probe()).watchers} >= {(getpass.getuser(), "first")}

    deadline = asyncio.get_running_loop().time() + 60
    while not await watched():
        assert asyncio.get_running_loop().time() < deadline
    happened = await second.since(0.0)
    assert ("created", "ada") in {(h.kind, h.actor) for h in happened.happenings}
    assert (await second.control("first", "checkpoint", "bob"))["action"] == "checkpoint"
    assert {service.kind for service in (await second.services()).services} <= {"unit", "process"}
    await until(lambda: len(steps(news)) >= 3, "three rows")
    rows = [row.step for piece in [piece async for piece in second.complete("first")] for row in piece.rows]
    assert rows == list(range(1, len(rows) + 1)) and len(rows) >= 3
    (Path(ack["run_dir"]) / "finish").touch()
    await asyncio.wait_for(following, 60)
