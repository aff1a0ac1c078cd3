"""The operator's ssh_config, agent and keys, as `ssh` itself takes them; nothing of the operator's machine leaves it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.container import Container, LinkError, Settings
from tests.remote.conftest import Open, Quick
from tests.remote.test_connect import Operator, refusal
from tests.support.sshd import Sshd, lock_key, make_key

RELAY = """
import os, select, socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([0, link], [], [])[0]:
        piece = os.read(0, 65536) if ready == 0 else link.recv(65536)
        if not piece:
            sys.exit()
        link.sendall(piece) if ready == 0 else os.write(1, piece)
"""


@dataclass
class Home:
    """The operator's home: ``~/.ssh`` with what a test puts there."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / ".ssh").mkdir(parents=True)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / ".ssh" / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def trust(self, *servers: Sshd, name: str = "") -> None:
        self.write("known_hosts", "".join(f"{name or server.known_name} {server.public_key()}\n" for server in servers))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    return Home(tmp_path / "operator")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """As a console's own, but for where it keeps what it remembers and where the machine's ssh_config is."""
    return Settings(state_dir=tmp_path / "state", system_ssh_config=tmp_path / "etc_ssh_config")


@dataclass
class Agent:
    """A real ssh-agent on a socket of its own."""

    socket: Path

    def add(self, key: Path, passphrase: str = "") -> None:
        asker = self.socket.parent / "askpass"
        asker.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        asker.chmod(0o700)
        env = {**os.environ, "SSH_AUTH_SOCK": str(self.socket), "SSH_ASKPASS": str(asker), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    place = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    with socket.socket(socket.AF_UNIX) as probe:
        while probe.connect_ex(str(place)) != 0:  # the file is there before anybody listens
            assert process.poll() is None
            time.sleep(0.01)
    yield Agent(place)
    process.terminate()
    process.wait()


async def test_a_host_is_put_together_from_include_match_and_the_machines_own_config(
    sshd: Sshd, home: Home, settings: Settings, opened: Open
) -> None:
    """User and key come from an included file, the port from the machine's, the address from a Host block; Match rules."""
    home.trust(sshd, name="the-box")
    home.write("work.conf", f"Host gpu\n  User {os.environ.get('USER', 'root')}\n  IdentityFile {sshd.client_key}\n")
    home.write(
        "config",
        "Include work.conf\nHost gpu\n  HostName 127.0.0.1\n  HostKeyAlias the-box\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"Match originalhost other\n  Port 1\nMatch host 127.0.0.1\n  User {_user()}\n",
    )
    settings.system_ssh_config.write_text(
        f"SendEnv LANG LC_*\nHashKnownHosts yes\nGSSAPIAuthentication yes\nHost *\n  Port {sshd.port}\n"
    )
    container = await opened("gpu", settings=settings)
    assert container.info["home"] == str(sshd.home)


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


async def test_the_operators_file_counts_before_the_machines(sshd: Sshd, home: Home, settings: Settings, opened: Open) -> None:
    home.trust(sshd)
    place = f"  HostName 127.0.0.1\n  Port {sshd.port}\n"
    home.write("config", f"Host gpu\n  User {_user()}\n{place}  IdentityFile {sshd.client_key}\n  IdentityAgent none\n")
    settings.system_ssh_config.write_text("Host gpu\n  Port 1\n  User nobody-there\nHost *\n  Port 2\n")
    await opened("gpu", settings=settings)


async def test_a_second_server_is_reached_through_the_first_and_only_so(
    sshd: Sshd, home: Home, settings: Settings, opened: Open, tmp_path: Path, seed: object
) -> None:
    far = Sshd(tmp_path / "far", more_config="AllowUsers *@127.0.0.1\n").start()
    try:
        (far.folder / "authorized_keys").write_bytes(far.client_key.with_suffix(".pub").read_bytes())
        home.write("known_hosts", f"gate {sshd.public_key()}\nfar {far.public_key()}\n")
        blocks = (
            f"Host {name}\n  HostName {address}\n  Port {server.port}\n  HostKeyAlias {name}\n"
            f"  IdentityFile {server.client_key}\n{more}"
            for name, address, server, more in (("gate", "127.0.0.1", sshd, ""), ("far", "localhost", far, "  ProxyJump gate\n"))
        )
        everywhere = "IdentityAgent none\n  IdentitiesOnly yes\n  RequestTTY force\n  RemoteCommand echo no\n"
        home.write("config", f"{''.join(blocks)}Host *\n  {everywhere}")
        container = await opened("far", settings=settings)
        assert container.info["home"] == str(far.home)
        assert await container.runs() == []
        assert "Accepted publickey" in sshd.log() and "Accepted publickey" in far.log()
        sshd.stop()
        error = await refusal(Container("far", settings=settings))
        assert error.kind == "unreachable"
    finally:
        far.stop()


async def test_a_proxy_command_carries_the_connection(sshd: Sshd, home: Home, settings: Settings, opened: Open) -> None:
    home.write("known_hosts", f"far {sshd.public_key()}\n")
    # One process, as real ones are: of two, one would hold the connection open when the other has been killed.
    relay = home.write("relay.py", RELAY)
    place = f"  HostName 127.0.0.1\n  Port {sshd.port}\n  HostKeyAlias far\n  ProxyCommand {sys.executable} {relay} %h %p\n"
    home.write("config", f"Host far\n{place}  IdentityFile {sshd.client_key}\n  IdentityAgent none\n")
    container = await opened("far", settings=settings)
    assert await container.runs() == []


async def test_a_jump_host_whose_key_has_changed_is_refused_before_anything_reaches_the_host_behind_it(
    sshd: Sshd, home: Home, settings: Settings, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    home.write("known_hosts", f"gate {other}")
    home.write(
        "config", f"Host gate\n  HostName 127.0.0.1\n  Port {sshd.port}\n  HostKeyAlias gate\nHost far\n  ProxyJump gate\n"
    )
    error = await refusal(Container("far", settings=settings))
    assert (error.kind, "host key of gate is not the one known" in error.text) == ("refused", True)


@pytest.mark.parametrize("named", ["{socket}", "SSH_AUTH_SOCK", "$OTHER_SOCK", "${OTHER_SOCK}", ""])
async def test_the_agent_is_the_one_that_the_config_names(
    sshd: Sshd, home: Home, settings: Settings, opened: Open, agent: Agent, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The private key is only in the agent; the config points at the public half, as for keys on a token."""
    home.trust(sshd)
    agent.add(sshd.client_key)
    public = home.write("token.pub", sshd.client_key.with_suffix(".pub").read_text())
    monkeypatch.setenv(
        "OTHER_SOCK" if "OTHER" in named else "SSH_AUTH_SOCK", str(agent.socket) if named != "{socket}" else "/nowhere"
    )
    line = f"  IdentityAgent {named.format(socket=agent.socket) if named == '{socket}' else named}\n" if named else ""
    home.write("config", f"Host *\n  IdentityFile {public}\n  IdentitiesOnly yes\n{line}")
    await opened(sshd.url, settings=settings)


async def test_a_locked_key_that_the_agent_holds_open_asks_nothing(
    sshd: Sshd, home: Home, settings: Settings, opened: Open, agent: Agent
) -> None:
    home.trust(sshd)
    lock_key(sshd.client_key, "open sesame")
    agent.add(sshd.client_key, "open sesame")
    missing = home.folder / ".ssh" / "id_that_is_not_there"
    home.write("config", f"Host *\n  IdentityFile {missing}\n  IdentityFile {sshd.client_key}\n  IdentityAgent {agent.socket}\n")
    operator = Operator()
    await opened(sshd.url, settings=settings, ask=operator.ask)
    assert operator.prompts == []


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_neither_the_agent_nor_the_environment_of_the_operator_is_lent_to_the_host(
    sshd: Sshd, home: Home, quick: Quick, opened: Open, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.stop()
    sshd.more_config = "AcceptEnv *\nAllowAgentForwarding yes\n"
    sshd.start()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    monkeypatch.setenv("HF_TOKEN", "hf_notForTheHost1234")
    config = quick(sshd, more_config="Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  SendEnv HF_TOKEN LANG\n")
    container = await opened(sshd.url, settings=config)
    environment = environment_of(container.info["pid"])
    assert b"SSH_CONNECTION" in environment
    assert b"SSH_AUTH_SOCK" not in environment and b"HF_TOKEN" not in environment and b"DISPLAY" not in environment


async def test_a_config_that_cannot_be_read_is_named(sshd: Sshd, quick: Quick) -> None:
    error = await refusal(Container("127.0.0.1", settings=quick(sshd, more_config="Host *\n  Port x\n")))
    assert "The ssh_config cannot be read" in error.text and "Port" in error.text


async def test_a_locked_key_where_nobody_can_be_asked_is_a_refused_login_with_a_next_step(
    sshd: Sshd, home: Home, settings: Settings
) -> None:
    home.trust(sshd)
    lock_key(sshd.client_key, "open sesame")
    home.write("config", f"Host *\n  IdentityFile {sshd.client_key}\n  IdentityAgent none\n")
    with pytest.raises(LinkError) as caught:
        await Container(sshd.url, settings=settings).open()
    assert caught.value.kind == "refused"
    assert "ssh-add" in caught.value.text


def test_the_hosts_that_an_ssh_config_names_are_listed_in_its_order_without_patterns(tmp_path: Path) -> None:
    from remote.config import host_names
    from remote.settings import Settings

    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.conf").write_text("Host from-b\n  User ann\n")
    (tmp_path / "conf.d" / "a.conf").write_text("host from-a from-a2 # not-this\n")
    (tmp_path / "config").write_text(
        "Include conf.d/*.conf nowhere.conf\n"
        "# Host commented\n"
        "Host *.internal gpu-1 !gpu-2 gpu-?\n  HostName 10.0.0.1\n"
        'Host=gpu-3\nHOST "gpu-4" gpu-1\n'
        'Host "never closed\n'
        "Match host gpu-9 exec true\n  User bob\n"
        "Include config\n"  # a circle
        "Host *\n  Compression no\n"
    )
    named = host_names(Settings(ssh_config=tmp_path / "config"))
    assert named == ["from-a", "from-a2", "from-b", "gpu-1", "gpu-3", "gpu-4"]
    assert host_names(Settings(ssh_config=tmp_path / "none")) == []
