"""A password asked for by a real OpenSSH server. (One-time codes need PAM there: they are tested with the in-process server.)"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.container import Container
from tests.remote.conftest import Open, Quick
from tests.remote.test_connect import Operator, refusal
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd
from tests.support.waiting import until

# Only root's sshd may read passwords; for other users the in-process server of test_connect.py stands in.
PASSWORDS = ["open sesame, pässword"] if os.geteuid() == 0 else []


def tries(server: Sshd) -> list[str]:
    """What became of each try, as the server logged it."""
    return [line.split(" ")[0] for line in server.log().splitlines() if " password for " in line]


@pytest.mark.parametrize("password", PASSWORDS)
async def test_a_password_is_asked_for_and_never_tried_again_by_itself(
    quick: Quick, opened: Open, tmp_path: Path, seed: Callable[[Path], Path], via: Callable[[int], str], password: str
) -> None:
    server = Sshd(tmp_path / "sshd", password=password).start()
    seed(server.home / "eagle3")
    operator = Operator(secrets=["wrong", password, password])
    try:
        async with FaultProxy(server.port) as proxy:
            settings = quick(server, port=proxy.port)
            container = await opened(via(proxy.port), settings=settings, ask=operator.ask)
            assert tries(server) == ["Failed", "Accepted"]
            proxy.abort()
            await until(lambda: "reconnect by hand" in container.link.reason, "the console to wait for a person")
            assert (container.link.status, tries(server), proxy.connections) == ("down", ["Failed", "Accepted"], 1)
            container.reconnect()
            await until(lambda: container.link.status == "up", "the person's reconnect")
            assert tries(server) == ["Failed", "Accepted", "Accepted"]
            await container.close()
        assert [question.echo for question in operator.prompts] == [False] * 3

        silent = await refusal(Container(server.url, settings=quick(server)))
        assert "asks for a password" in silent.text
        guessing = Operator(secrets=["a", "b", "c", "d", "e"])
        error = await refusal(Container(server.url, settings=quick(server), ask=guessing.ask))
        assert error.kind == "refused" and len(guessing.prompts) == 3
    finally:
        server.stop()
