"""Logins on the way through a jump host: who asks, who refuses, and a question that nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncssh

from remote.ask import SecretQuestion
from remote.container import Container
from tests.remote.conftest import Open, Quick
from tests.remote.test_connect import Operator, PasswordServer, embedded, refusal
from tests.support.waiting import until

GATE = "gate (on the way to box)"


class Gate(PasswordServer):
    """A jump host."""

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


@contextlib.asynccontextmanager
async def two_hosts(folder: Path, tries: list[str], open_: list[asyncssh.SSHServerConnection]) -> AsyncIterator[None]:
    """``box`` behind ``gate``, each with a password of its own to be asked for; their keys are known."""
    parts = [folder / "gate", folder / "box"]
    for part in parts:
        part.mkdir()
    async with (
        embedded(lambda: Gate(tries, open_), parts[0]) as gate,
        embedded(lambda: PasswordServer(tries, []), parts[1]) as box,
    ):
        (folder / "known_hosts").write_text("".join((part / "known_hosts").read_text() for part in parts))
        common = f"  HostName 127.0.0.1\n  User {getpass.getuser()}\n"
        hosts = f"Host gate\n{common}  Port {gate}\nHost box\n{common}  Port {box}\n  ProxyJump gate\n"
        (folder / "ssh_config").write_text(hosts + (parts[0] / "ssh_config").read_text())
        yield


async def test_each_host_on_the_way_asks_in_its_own_name_and_says_when_a_password_was_wrong(
    quick: Quick, opened: Open, tmp_path: Path, seed: Callable[[Path], Path]
) -> None:
    tries: list[str] = []
    operator = Operator(secrets=["wrong", "right", "wrong", "wrong", "right"])
    workspace = str(seed(tmp_path / "workspace"))
    async with two_hosts(tmp_path, tries, []):
        container = await opened("box", settings=quick(), ask=operator.ask, workspace=workspace)
        await container.close()
    again = "That one was not taken; try {} of 3. Password:"
    assert [(question.host, question.prompt) for question in operator.prompts] == [
        (GATE, "Password:"), (GATE, again.format(2)),
        ("box", "Password:"), ("box", again.format(2)), ("box", again.format(3)),
    ]  # fmt: skip


async def test_a_jump_host_that_refuses_is_the_one_that_is_named(quick: Quick, tmp_path: Path) -> None:
    async with two_hosts(tmp_path, [], []):
        guessing = Operator(secrets=["no"] * 9)
        error = await refusal(Container("box", settings=quick(), ask=guessing.ask))
        assert len(guessing.prompts) == 3, "a fourth guess is how accounts get locked"
        assert error.kind == "refused" and error.text.startswith(f"{GATE} refused the login"), error.text
        config = tmp_path / "ssh_config"
        config.write_text(config.read_text().replace("ProxyJump gate", "ProxyJump no-such-gate.invalid"))
        error = await refusal(Container("box", settings=quick()))
        assert "There is no host called no-such-gate.invalid (on the way to box)" in error.text


class Thinking(Operator):
    """Does not answer."""

    gave_up = False

    async def secret(self, question: SecretQuestion) -> str | None:
        self.prompts.append(question)
        try:
            await asyncio.Event().wait()
        finally:
            self.gave_up = True
        return None


async def test_a_host_that_hangs_up_while_it_is_answered_is_not_waited_for(quick: Quick, tmp_path: Path) -> None:
    open_: list[asyncssh.SSHServerConnection] = []
    operator = Thinking()
    async with two_hosts(tmp_path, [], open_):
        opening = asyncio.create_task(refusal(Container("box", settings=quick(), ask=operator.ask)))
        await until(lambda: bool(operator.prompts), "the question")
        open_[-1].abort()
        error = await asyncio.wait_for(opening, 20)
    assert operator.gave_up and error.kind in ("unreachable", "lost", "refused")
