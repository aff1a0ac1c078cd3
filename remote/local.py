"""`--local`: this machine as the container, through a real SSH server on loopback.

Same code path as a remote host, from the handshake on. The server knows one key, made for this start and never written
down; every other login is refused, since an open port on loopback is open to every user of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh

from eagle3.runner import detach

CHUNK_BYTES = 1 << 16
CLOSE_LIMIT_S = 2.0


class LocalServer:
    """Commands run as the current user, in the home folder, and end when they want to: like sshd, it lets go of what
    is still running when the connection drops."""

    def __init__(self) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._commands: set[asyncio.Task[None]] = set()

    async def start(self) -> LocalServer:
        """Listen on a free port of 127.0.0.1. Raises OSError."""
        accepted = self.client_key.export_public_key("openssh").decode()
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=_OneUser,
            server_host_keys=[self.host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(accepted),
            process_factory=self._command,
            sftp_factory=True,
            encoding=None,
            allow_pty=False,
            agent_forwarding=False,
            x11_forwarding=False,
            login_timeout=10,
        )
        self.port = self._acceptor.get_port()
        return self

    async def close(self) -> None:
        """Stop listening, and give the commands a moment to notice that nobody is there."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self._commands:
            _, late = await asyncio.wait(self._commands, timeout=CLOSE_LIMIT_S)
            for command in late:
                command.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._commands.add(task)
        try:
            await run_command(process)
        finally:
            self._commands.discard(task)


class _OneUser(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        # True: this user has to authenticate. There is no user who need not.
        return True

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False


async def run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    if process.command is None:
        process.stderr.write(b"This server runs commands only.\n")
        process.exit(1)
        return
    # A session of its own: Ctrl-C in the console's terminal is not for the container. Nor are the operator's secrets and agent.
    child = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        cwd=Path.home(), start_new_session=True, env=detach.child_environment({}),
    )  # fmt: skip
    assert child.stdin and child.stdout and child.stderr
    feeding = asyncio.create_task(_feed(process, child.stdin))
    try:
        await asyncio.gather(_pump(child.stdout.read, process.stdout), _pump(child.stderr.read, process.stderr))
        code = await child.wait()
    finally:
        feeding.cancel()
        child.stdin.close()
        if child.returncode is None:
            child.terminate()
            await child.wait()
    process.exit(code if code >= 0 else 128 - code)


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter) -> None:
    # A child that reads no further, or a client that is gone, ends the feeding and nothing else.
    with contextlib.suppress(OSError, asyncssh.Error, asyncssh.misc.BreakReceived):
        while data := await process.stdin.read(CHUNK_BYTES):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _pump(read: Callable[[int], Awaitable[bytes]], out: asyncssh.SSHWriter[bytes]) -> None:
    lost = False
    while data := await read(CHUNK_BYTES):
        if not lost:
            try:
                out.write(data)
                await out.drain()
            except (OSError, asyncssh.Error):
                # The client is gone: keep the pipe empty, so that the child is not blocked on it.
                lost = True
