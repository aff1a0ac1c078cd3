"""A deep check and a remedy over the wire: it goes on where the link does not, and is told without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.readiness.wants import wants
from remote.container import Container, ContainerError, Told
from remote.deepcheck import follow, new_check_id, told
from remote.errors import LinkError
from tests.remote.conftest import Open, Quick
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd
from tests.support.waiting import until

DISK = {**wants(None, "~/eagle3"), "sections": ["deep.disk"], "paths": []}


async def gather(container: Container, asked: dict[str, Any], check_id: str, news: list[Told]) -> None:
    async for line in container.deep_check(asked, check_id=check_id, poll_s=0.05):
        news.append(line)


async def test_sections_are_told_as_they_come_and_again_to_whoever_joins(
    quick: Quick, opened: Open, tmp_path: Path, seed: Callable[[Path], Path]
) -> None:
    container = await opened(local=True, workspace=str(seed(tmp_path / "ws")), settings=quick())
    name, news, again = new_check_id(), [], []
    await gather(container, DISK, name, news)
    assert [(line.section, line.doing) for line in news] == [("deep.disk", True), ("deep.disk", False)], news
    assert news[1].facts is not None and news[1].facts["paths"][0]["lock"] == "holds"
    await gather(container, DISK, name, again)
    assert again == news, "the same check, not a second one"


async def test_a_check_outlives_the_link_and_is_followed_over_the_next_one(
    sshd: Sshd, quick: Quick, opened: Open, via: Callable[[int], str], tmp_path: Path
) -> None:
    async with FaultProxy(sshd.port) as proxy:
        container = await opened(via(proxy.port), settings=quick(sshd, port=proxy.port))
        go, site, python = sshd.home / "go", sshd.home / "site", sshd.home / "python"
        # An import that lasts until the test lets it end.
        site.mkdir()
        (site / "waiter.py").write_text(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n")
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec python3 "$@"\n')
        python.chmod(0o755)
        asked = {**DISK, "sections": ["deep.imports.worker"], "modules": {"worker": ["waiter"]}}
        asked["pythons"] = {"worker": str(python), "server": ""}
        news: list[Told] = []
        following = asyncio.create_task(gather(container, asked, "deep-1", news))
        await until(lambda: any(line.doing for line in news), "the check is under way")
        proxy.abort()
        go.touch()
        await asyncio.wait_for(following, 60)
        assert [(line.section, line.doing) for line in news] == [("deep.imports.worker", True), ("deep.imports.worker", False)]
        assert news[1].facts is not None and news[1].facts["packages"][0]["ok"], news


async def test_a_remedy_is_shown_and_acts_only_with_the_token_of_what_was_shown(
    quick: Quick, opened: Open, tmp_path: Path, seed: Callable[[Path], Path]
) -> None:
    workspace = seed(tmp_path / "ws")
    (workspace / "old").mkdir()
    (workspace / "old" / "x").write_text("x")
    container = await opened(local=True, workspace=str(workspace), settings=quick())
    shown = await container.remedy("delete", {"paths": ["old"]})
    assert shown["items"][0]["files"] == 1 and (workspace / "old" / "x").exists()
    with pytest.raises(ContainerError, match="not what the preview showed"):
        await container.remedy("delete", {"paths": ["old"]}, token="0" * 32)
    done = await container.remedy("delete", {"paths": ["old"]}, token=shown["token"])
    assert done["left"] == [] and not (workspace / "old").exists()


async def test_an_end_before_its_end_is_told_in_words_and_a_lost_link_is_waited_out() -> None:
    answers: list[Any] = [
        LinkError("lost", "cut"),
        {"lines": ['{"doing": "deep.canary", "t": 1}', "{half"], "offset": 9, "log": "", "log_offset": 0, "done": False},
        {
            "lines": [],
            "offset": 9,
            "log": "Traceback",
            "log_offset": 9,
            "done": True,
            "exit": {"code": None, "error": "It ended."},
        },
    ]

    async def call(verb: str, args: dict[str, Any]) -> dict[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, LinkError):
            raise answer
        found: dict[str, Any] = answer
        return found

    news = [line async for line in follow(call, "/ws", "deep-1", poll_s=0)]
    assert [(line.section, line.text) for line in news] == [("deep.canary", ""), ("", "{half"), ("", "It ended.")]
    assert news[2].more["log"] == "Traceback"
    assert told('{"step": "pip install x", "ok": false, "text": "ended with code 1"}').text == "ended with code 1"
