"""Connection and helper together: established from nothing, or from what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from remote.ask import Ask
from remote.bootstrap import Places, helper_command, install
from remote.bundle import Bundle, bundle
from remote.channel import HelperChannel, Reply
from remote.errors import ContainerError, LinkError

if TYPE_CHECKING:
    from remote.connection import Connection

Dial = Callable[[Ask], Awaitable["Connection"]]

HELLO_LIMIT_S = 15.0
EARLY_LIMIT_S = 30.0
FRESH_S = 3.0
"""A reply that came along with the connection and was not asked for within so long is too old to be one."""


class Line:
    """``info`` is the helper's answer to ``hello``; ``uploads`` counts how often the bundle was sent and put in
    place; ``pruned`` and ``repaired`` say what the last of these removed and put right. ``first``, the arguments of a poll,
    is asked in the same breath as ``hello``."""

    def __init__(self, dial: Dial, python: str, workspace: str, first: dict[str, Any] | None = None) -> None:
        self._dial = dial
        self._python = python
        self._workspace = workspace
        self._first = first
        self.presence: dict[str, str] = {"actor": getpass.getuser()}
        """What the helper is told with each hello of who sits here: ``actor`` and the run that they are ``watching``."""
        self._early: asyncio.Task[Reply | None] | None = None
        self._places: Places | None = None
        self.connection: Connection | None = None
        self.channel: HelperChannel | None = None
        self.info: dict[str, Any] = {}
        self.uploads = 0
        self.pruned: list[str] = []
        self.repaired: list[str] = []

    @property
    def interactive(self) -> bool:
        """Whether the last login needed a person."""
        return self.connection is not None and self.connection.interactive

    @property
    def site(self) -> str:
        """Absolute path there of the folder that holds the `eagle3` package."""
        assert self._places is not None
        site = self._places.site
        return str(self.info.get("home", "~")).rstrip("/") + site[1:] if site.startswith("~") else site

    async def establish(self, ask: Ask) -> HelperChannel:
        """Dial unless there is a connection, install the helper unless it is there, start it and greet it.

        Raises LinkError or ContainerError; an open connection is then kept for the next try.
        """
        connection = self.connection
        if connection is None or connection.closed.done():
            connection = self.connection = await self._dial(ask)
        try:
            contents = await asyncio.to_thread(bundle)
        except OSError as error:
            text = f"This console's own eagle3 package cannot be read: {error.filename}: {error.strerror}."
            raise ContainerError("failed", text, "Install it again.") from error
        self._places = Places(self._workspace, contents.version)
        self.channel = await self._helper(connection, contents)
        return self.channel

    async def _helper(self, connection: Connection, contents: Bundle) -> HelperChannel:
        try:
            channel = await self._start(connection)
            if not self.info.get("damaged"):
                return channel
            # It runs, but files beside it are missing or changed, such as the package that a run would import.
            await channel.close()
        except LinkError as first:
            if connection.closed.done() or first.kind == "timeout":
                raise
        # It did not start: most likely it is not there, and then this is the moment to look and to send it.
        answer = await install(connection, self._python, self._workspace, contents)
        self.uploads += not answer["already"]
        self.pruned, self.repaired = list(answer["pruned"]), list(answer["repaired"])
        try:
            return await self._start(connection)
        except LinkError as second:
            if connection.closed.done() or second.kind == "timeout":
                raise
            raise ContainerError(
                "failed", f"The helper is in place at {answer['path']} but does not start.", "", second.text
            ) from second

    async def _start(self, connection: Connection) -> HelperChannel:
        assert self._places is not None
        marker = f"@eagle3-{secrets.token_hex(8)}@"
        command = helper_command(self._python, self._places, marker)
        channel = await HelperChannel.open(connection, command, marker, HELLO_LIMIT_S)
        try:
            hello = asyncio.ensure_future(channel.request("hello", dict(self.presence), HELLO_LIMIT_S))
            if self._first is not None:
                self._early = asyncio.create_task(self._ask_early(channel, {**self.presence, **self._first}))
            self.info = (await hello).result
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _ask_early(self, channel: HelperChannel, args: dict[str, Any]) -> Reply | None:
        with contextlib.suppress(LinkError, ContainerError):  # whoever asks next asks the usual way, and is told then
            reply = await channel.request("poll", args, EARLY_LIMIT_S)
            asyncio.get_running_loop().call_later(FRESH_S, self._forget_early, asyncio.current_task())
            return reply
        return None

    def _forget_early(self, task: object) -> None:
        if self._early is task:
            self._early = None

    async def early_reply(self) -> Reply | None:
        """The reply to ``first``, once; None where there is none."""
        early, self._early = self._early, None
        return await asyncio.shield(early) if early is not None else None

    def drop(self, reason: str) -> None:
        """Give up a connection that no longer answers."""
        if self.connection is not None:
            self.connection.abort(reason)

    async def close(self) -> None:
        channel, connection = self.channel, self.connection
        if self._early is not None:
            self._early.cancel()
        if channel is not None:
            await channel.close()
        if connection is not None:
            await connection.close()


def dial_host(host: str, settings: Any) -> Dial:
    """Dial ``host``; asyncssh, half a second of imports, is loaded beside the event loop and only now."""

    async def dial(ask: Ask) -> Connection:
        module = await asyncio.to_thread(importlib.import_module, "remote.connection")
        connection: Connection = await module.connect(host, ask, settings)
        return connection

    return dial


class LocalDial:
    """Dial this machine through the embedded server, which is started with the first call."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._server: Any = None

    async def __call__(self, ask: Ask) -> Connection:
        local = await asyncio.to_thread(importlib.import_module, "remote.local")
        module = await asyncio.to_thread(importlib.import_module, "remote.connection")
        if self._server is None:
            try:
                self._server = await local.LocalServer().start()
            except OSError as error:
                raise LinkError("unreachable", f"This machine opens no port on 127.0.0.1: {error.strerror}.") from error
        connection: Connection = await module.connect_local(self._server, self._settings)
        return connection

    async def close(self) -> None:
        if self._server is not None:
            with contextlib.suppress(OSError):
                await self._server.close()
