"""`--local` is a real SSH server that lets in exactly one key."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import AsyncIterator

import asyncssh
import pytest
import pytest_asyncio

from remote.local import LocalServer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[LocalServer]:
    started = await LocalServer().start()
    yield started
    await started.close()


def login(server: LocalServer, **options: object) -> asyncssh.misc._ACMWrapper[asyncssh.SSHClientConnection]:
    known: tuple[list[asyncssh.SSHKey], ...] = ([server.host_key.convert_to_public()], [], [])
    defaults = {"username": getpass.getuser(), "client_keys": None, "agent_path": None, "config": None, "known_hosts": known}
    return asyncssh.connect("127.0.0.1", server.port, **{**defaults, **options})


async def test_the_one_key_gets_in_and_commands_keep_their_exit_codes(server: LocalServer) -> None:
    async with login(server, client_keys=[server.client_key]) as connection:
        done = await connection.run("cat; echo bad >&2; exit 3", input=b"in \xff\n", encoding=None)
        assert (done.exit_status, done.stdout, done.stderr) == (3, b"in \xff\n", b"bad\n")
        async with connection.start_sftp_client() as sftp:
            assert await sftp.exists("/")


async def test_another_key_is_refused(server: LocalServer) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        await login(server, client_keys=[asyncssh.generate_private_key("ssh-ed25519")])


async def test_no_key_no_password_and_no_empty_login_get_in(server: LocalServer) -> None:
    for options in ({}, {"password": ""}, {"password": getpass.getuser()}):
        with pytest.raises(asyncssh.PermissionDenied):
            await login(server, **options)


async def test_every_start_has_keys_of_its_own(server: LocalServer) -> None:
    other = await LocalServer().start()
    try:
        with pytest.raises(asyncssh.PermissionDenied):
            await login(server, client_keys=[other.client_key])
    finally:
        await other.close()


@pytest.mark.parametrize("module", ["remote.container", "remote.local", "remote.connection"])
def test_only_opening_loads_the_ssh_library(module: str) -> None:
    code = f"import sys, {module}; print('asyncssh' in sys.modules, 'textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(module != "remote.container"), "False"]
