"""Who is at the other end: unknown, changed, revoked, wrong, silent, or chatty."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import asyncssh
import pytest

from remote.connection import Where
from remote.container import Ask, Container, ContainerError, HostKeyQuestion, LinkError, SecretQuestion
from remote.local import run_command
from tests.remote.conftest import Open, Quick
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd, free_port, lock_key, make_key
from tests.support.waiting import until


class Operator:
    """Answers questions as told, and remembers them."""

    def __init__(self, trusts: bool = True, secrets: list[str] | None = None) -> None:
        self.trusts = trusts
        self.secrets = secrets or []
        self.keys: list[HostKeyQuestion] = []
        self.prompts: list[SecretQuestion] = []

    @property
    def ask(self) -> Ask:
        return Ask(self.host_key, self.secret)

    async def host_key(self, question: HostKeyQuestion) -> bool:
        self.keys.append(question)
        return self.trusts

    async def secret(self, question: SecretQuestion) -> str | None:
        self.prompts.append(question)
        return self.secrets.pop(0) if self.secrets else None


async def refusal(container: Container) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await container.open()
    assert caught.value.text.endswith("."), caught.value.text
    await container.close()
    return caught.value


async def test_a_known_host_is_probed_in_one_go(sshd: Sshd, quick: Quick, opened: Open) -> None:
    container = await opened(sshd.url, settings=quick(sshd))
    probe = await container.probe(paths=[str(sshd.folder)])
    assert container.link.status == "up"
    assert container.info["home"] == str(sshd.home)
    assert probe.host and probe.disks and probe.now > 0
    assert probe.gpu.status in ("none", "ok", "unknown")


async def test_an_unknown_host_is_shown_by_fingerprint_and_remembered_once_accepted(
    sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path
) -> None:
    operator = Operator(trusts=True)
    settings = quick(sshd, trust=False)
    await opened(sshd.url, settings=settings, ask=operator.ask)
    assert [(key.fingerprint, key.name, key.key_type) for key in operator.keys] == [
        (sshd.fingerprint(), sshd.known_name, "ED25519")
    ]
    own = tmp_path / "state" / "known_hosts"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert own.read_text() == f"{sshd.known_name} {sshd.public_key()}\n"
    await opened(sshd.url, settings=settings, ask=operator.ask)
    assert len(operator.keys) == 1


async def test_an_unknown_host_is_refused_on_no_and_nothing_is_remembered(sshd: Sshd, quick: Quick, tmp_path: Path) -> None:
    operator = Operator(trusts=False)
    error = await refusal(Container(sshd.url, settings=quick(sshd, trust=False), ask=operator.ask))
    assert error.kind == "refused", error.text
    assert sshd.fingerprint() in error.text
    assert not (tmp_path / "state").exists()
    assert "Accepted" not in (sshd.folder / "sshd.log").read_text()


async def test_an_unknown_host_is_refused_where_nobody_can_be_asked(sshd: Sshd, quick: Quick) -> None:
    error = await refusal(Container(sshd.url, settings=quick(sshd, trust=False)))
    assert error.kind == "refused", error.text
    assert "nobody was there" in error.text


async def test_a_changed_host_key_is_refused_without_a_question(sshd: Sshd, quick: Quick) -> None:
    settings = quick(sshd)
    sshd.change_host_key()
    operator = Operator()
    container = Container(sshd.url, settings=settings, ask=operator.ask)
    error = await refusal(container)
    assert error.kind == "refused", error.text
    assert "not the one known" in error.text and sshd.fingerprint() in error.text
    assert operator.keys == []
    assert "Accepted" not in (sshd.folder / "sshd.log").read_text()


async def test_a_host_that_lost_its_known_kind_of_key_counts_as_changed(sshd: Sshd, quick: Quick) -> None:
    settings = quick(sshd)
    sshd.stop()
    make_key(sshd.host_key, "ecdsa")
    sshd.start()
    operator = Operator()
    error = await refusal(Container(sshd.url, settings=settings, ask=operator.ask))
    assert (error.kind, operator.keys) == ("refused", [])


async def test_a_revoked_host_key_is_refused(sshd: Sshd, quick: Quick, tmp_path: Path) -> None:
    settings = quick(sshd)
    (tmp_path / "known_hosts").write_text(f"@revoked * {sshd.public_key()}\n")
    operator = Operator()
    error = await refusal(Container(sshd.url, settings=settings, ask=operator.ask))
    assert error.kind == "refused", error.text
    assert "revoked" in error.text
    assert operator.keys == []


async def test_another_key_on_the_machines_own_port_is_unknown_not_changed(
    sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path
) -> None:
    settings = quick(sshd, trust=False)
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    (tmp_path / "known_hosts").write_text(f"127.0.0.1 {other}")
    operator = Operator(trusts=True)
    await opened(sshd.url, settings=settings, ask=operator.ask)
    assert len(operator.keys) == 1


async def test_a_key_that_the_host_does_not_accept_is_a_refused_login(sshd: Sshd, quick: Quick) -> None:
    settings = quick(sshd)
    make_key(sshd.client_key)
    error = await refusal(Container(sshd.url, settings=settings))
    assert error.kind == "refused", error.text
    assert "authorized_keys" in error.text


async def test_a_closed_port_is_unreachable(sshd: Sshd, quick: Quick, via: Callable[[int], str]) -> None:
    error = await refusal(Container(via(free_port()), settings=quick(sshd)))
    assert error.kind == "unreachable", error.text
    assert "no SSH server listens" in error.text


async def test_a_port_that_stays_silent_is_unreachable_within_the_limit(
    sshd: Sshd, quick: Quick, via: Callable[[int], str]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = quick(sshd, connect_limit_s=0.5)
        error = await refusal(Container(via(silent.getsockname()[1]), settings=settings))
    assert error.kind == "unreachable", error.text
    assert "did not answer" in error.text


async def test_a_name_that_does_not_exist_is_unreachable(sshd: Sshd, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_such_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", no_such_name)
    error = await refusal(Container("nowhere", settings=quick(sshd)))
    assert error.kind == "unreachable", error.text
    assert "no host called nowhere" in error.text


async def test_a_chatty_login_shell_disturbs_nothing(quick: Quick, opened: Open, tmp_path: Path) -> None:
    noise = 'Welcome!\n{"id": 1, "ok": true}\n\x1b[2Jand half a line'
    server = Sshd(tmp_path / "noisy", noise=noise).start()
    try:
        container = await opened(server.url, settings=quick(server))
        assert container.uploads == 1
        assert await container.runs() == []
    finally:
        server.stop()


async def test_jump_hosts_of_the_ssh_config_are_taken_with_the_same_questions(
    sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path
) -> None:
    aliases = "".join(
        f"Host {name}\n  HostName 127.0.0.1\n  Port {sshd.port}\n  HostKeyAlias {name}\n{more}"
        for name, more in (("gate", ""), ("box", "  ProxyJump gate\n  RequestTTY force\n  RemoteCommand false\n"))
    )
    operator = Operator()
    container = await opened("box", settings=quick(sshd, trust=False, more_config=aliases), ask=operator.ask)
    assert await container.runs() == []
    assert [key.name for key in operator.keys] == ["gate", "box"]


@pytest.mark.parametrize("text", ["", "a b", "-oProxyCommand=x", "ssh://", "ssh://h:port", "ssh://ada:pw@h", "http://h"])
async def test_what_names_no_host_is_wrong_usage(text: str) -> None:
    with pytest.raises(ContainerError) as caught:
        Where.parse(text)
    assert caught.value.code == "usage"


def test_hosts_are_written_as_for_ssh() -> None:
    assert Where.parse("gpu-box") == Where("gpu-box")
    assert Where.parse("ada@gpu-box") == Where("gpu-box", None, "ada")
    assert Where.parse("ssh://ada@gpu-box:2222") == Where("gpu-box", 2222, "ada")
    assert Where.parse_jump("ada@gate:22") == Where("gate", 22, "ada")


@contextlib.asynccontextmanager
async def embedded(factory: Callable[[], asyncssh.SSHServer], folder: Path) -> AsyncIterator[int]:
    """An in-process server with another way to log in, its key known and no key of ours offered; gives the port."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    acceptor = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=factory, server_host_keys=[key], process_factory=run_command, encoding=None
    )
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{acceptor.get_port()} {key.export_public_key().decode()}\n")
    (folder / "ssh_config").write_text("Host *\n  IdentityAgent none\n  PubkeyAuthentication no\n")
    yield acceptor.get_port()
    acceptor.close()


class PasswordServer(asyncssh.SSHServer):
    """Takes one password. ``tries`` and ``open`` collect what happens."""

    def __init__(self, tries: list[str], open_: list[asyncssh.SSHServerConnection]) -> None:
        self._tries, self._open = tries, open_

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._open.append(conn)

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        self._tries.append(password)
        return password == "right"


async def test_a_login_with_a_password_is_never_repeated_by_itself(
    quick: Quick, opened: Open, tmp_path: Path, via: Callable[[int], str], seed: Callable[[Path], Path]
) -> None:
    tries: list[str] = []
    connections: list[asyncssh.SSHServerConnection] = []
    async with embedded(lambda: PasswordServer(tries, connections), tmp_path) as port:
        operator = Operator(secrets=["wrong", "right", "right"])
        workspace = str(seed(tmp_path / "workspace"))
        container = await opened(via(port), settings=quick(), ask=operator.ask, workspace=workspace)
        assert tries == ["wrong", "right"]

        connections[-1].abort()
        await until(lambda: "reconnect by hand" in container.link.reason, "the console to wait for a person")
        assert container.link.status == "down"
        assert tries == ["wrong", "right"]
        container.reconnect()
        await until(lambda: container.link.status == "up", "the person's reconnect")
        assert tries == ["wrong", "right", "right"]
        await container.close()


async def test_where_nobody_can_be_asked_for_a_password_the_login_is_refused(
    quick: Quick, tmp_path: Path, via: Callable[[int], str]
) -> None:
    async with embedded(lambda: PasswordServer([], []), tmp_path) as port:
        error = await refusal(Container(via(port), settings=quick()))
    assert error.kind == "refused", error.text
    assert "asks for a password" in error.text


class CodeServer(asyncssh.SSHServer):
    """Asks for a one-time code."""

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> tuple[str, str, str, list[tuple[str, bool]]]:
        return "", "Second factor", "", [("Code:", True)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        return list(responses) == ["123456"]


async def test_a_one_time_code_is_asked_for_in_the_hosts_words(
    quick: Quick, opened: Open, tmp_path: Path, via: Callable[[int], str], seed: Callable[[Path], Path]
) -> None:
    async with embedded(CodeServer, tmp_path) as port:
        operator = Operator(secrets=["123456"])
        await opened(via(port), settings=quick(), ask=operator.ask, workspace=str(seed(tmp_path / "workspace")))
    assert [(question.prompt, question.echo) for question in operator.prompts] == [("Second factor Code:", True)]


async def test_a_cancelled_question_ends_the_login(quick: Quick, tmp_path: Path, via: Callable[[int], str]) -> None:
    async with embedded(CodeServer, tmp_path) as port:
        operator = Operator()
        error = await refusal(Container(via(port), settings=quick(), ask=operator.ask))
    assert error.kind == "refused", error.text
    assert "cancelled" in error.text
    assert len(operator.prompts) == 1


async def test_the_passphrase_of_a_key_is_asked_for_once_the_host_accepts_the_key(sshd: Sshd, quick: Quick, opened: Open) -> None:
    lock_key(sshd.client_key, "open sesame")
    operator = Operator(secrets=["open sesame"])
    container = await opened(sshd.url, settings=quick(sshd), ask=operator.ask)
    assert [question.prompt for question in operator.prompts] == ["Passphrase of the key client_key"]
    assert await container.runs() == []


async def test_a_wrong_passphrase_is_a_refused_login(sshd: Sshd, quick: Quick) -> None:
    lock_key(sshd.client_key, "open sesame")
    operator = Operator(secrets=["let me in"])
    error = await refusal(Container(sshd.url, settings=quick(sshd), ask=operator.ask))
    assert error.kind == "refused", error.text


async def test_after_a_sleep_a_dead_connection_is_given_up_at_the_first_silent_ping(
    sshd: Sshd, quick: Quick, opened: Open, via: Callable[[int], str]
) -> None:
    slept_s = [0.0]
    async with FaultProxy(sshd.port) as proxy:
        settings = quick(sshd, port=proxy.port, clock=lambda: time.time() + slept_s[0], pings_missed=1000)
        container = await opened(via(proxy.port), settings=settings)
        proxy.mode = "swallow"
        await until(lambda: container.link.status == "degraded", "silence to be noticed")
        slept_s[0] = 3600.0
        await until(lambda: container.link.status == "down", "the connection from before the sleep to be given up")
        proxy.mode = "pass"
        proxy.abort()  # a dial whose first bytes were swallowed would wait out its limit
        await until(lambda: container.link.status == "up", "a new connection")


async def test_an_unreachable_host_is_dialled_on_in_the_background_if_wanted(sshd: Sshd, quick: Quick, opened: Open) -> None:
    sshd.stop()
    container = Container(sshd.url, settings=quick(sshd))
    with pytest.raises(LinkError):
        await container.open(persist=True)
    assert container.link.status == "down"
    sshd.start()
    await until(lambda: container.link.status == "up", "the host to be reached after all")
    assert await container.runs() == []
    await container.close()


async def test_what_is_no_host_is_not_dialled_again(quick: Quick) -> None:
    container = Container("a b", settings=quick())
    with pytest.raises(ContainerError, match="names no host"):
        await container.open(persist=True)
    assert (container.link.status, "names no host" in container.link.reason) == ("refused", True)
    await container.close()


async def test_after_a_sleep_a_host_that_was_down_is_dialled_at_once(sshd: Sshd, quick: Quick) -> None:
    slept_s = [0.0]

    def up_after_more_sleep() -> bool:
        slept_s[0] += 3600.0
        return container.link.status == "up"

    sshd.stop()
    settings = quick(sshd, clock=lambda: time.time() + slept_s[0], backoff_first_s=1e6, backoff_most_s=1e6, random=lambda: 1.0)
    container = Container(sshd.url, settings=settings)
    with pytest.raises(LinkError):
        await container.open(persist=True)
    sshd.start()
    await until(up_after_more_sleep, "the host to be dialled after the sleep")
    await container.close()
