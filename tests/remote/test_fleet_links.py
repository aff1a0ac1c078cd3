"""One console on two real SSH servers: the silence of one is told of that one, and the other goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from remote.ask import Ask
from remote.container import Container
from remote.own_thread import OwnThread
from remote.settings import Settings
from tests.remote.conftest import Quick
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd
from tests.tui.support.driving import until, until_seen
from tui.app import ConsoleApp
from tui.fleet import Place
from tui.ports import Connect, ContainerPort, OnLink


def place(name: str, url: str, settings: Settings) -> Place:
    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        made = OwnThread(lambda tell, asked: Container(url, settings=settings, on_link=tell, ask=asked), on_link, ask)
        return cast(ContainerPort, made)

    return Place(name, cast(Connect, connect))


@pytest.mark.long
async def test_a_host_that_falls_silent_takes_nothing_from_the_other(
    tmp_path: Path, seed: Callable[[Path], Path], quick: Quick, via: Callable[[int], str]
) -> None:
    servers = [Sshd(tmp_path / name).start() for name in ("first", "second")]
    places = []
    try:
        async with FaultProxy(servers[0].port) as before_first:
            for number, (server, port) in enumerate(zip(servers, (before_first.port, servers[1].port), strict=True)):
                seed(server.home / "eagle3")
                known = server.folder / "known_here"
                known.write_text(f"[127.0.0.1]:{port} {server.public_key()}\n")
                config = server.write_client_config(server.folder / "config_here")
                places.append(place(f"box-{number}", via(port), quick(known_hosts=known, ssh_config=config)))
            app = ConsoleApp(places[0].connect, host=places[0].name, others=places[1:], poll_s=0.3)
            async with app.run_test(size=(120, 40)) as pilot:
                first, second = (app.members[f"box-{number}"].console for number in range(2))
                await until(pilot, lambda: first.probe.at is not None and second.probe.at is not None, "both probes")
                before_first.mode = "swallow"
                seen_at = second.probe.at
                assert seen_at is not None
                await until(pilot, lambda: (second.probe.at or 0.0) > seen_at + 1.0, "news of the other")
                await until_seen(pilot, "✗ down since")
                assert (first.link.status, second.link.status, second.probe.problem) == ("down", "up", "")
                await pilot.press("ctrl+n")
                await until_seen(pilot, "box-1  ● up since")
                before_first.mode = "pass"
                before_first.abort()
                await until(pilot, lambda: first.link.status == "up", "the first to come back by itself")
    finally:
        for server in servers:
            server.stop()
