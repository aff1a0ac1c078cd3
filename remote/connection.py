"""One SSH connection to the container: who is there, who we are, and no wait without an end.

asyncssh does the protocol. Decided here: how a host key is judged (`remote.hosts`), how a jump host is dialled (like
any other host, with the same questions), what is asked of the operator, and how each failure reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncssh

from remote.ask import Ask, HostKeyQuestion
from remote.config import configs, login_options
from remote.errors import ContainerError, LinkError
from remote.hosts import Known, KnownHosts
from remote.login import Client, Prompts
from remote.settings import Settings
from remote.text import last_line, plain

MAX_JUMPS = 8
CLOSE_LIMIT_S = 2.0


@dataclass(frozen=True)
class Where:
    """Host, port and user as the operator wrote them; None where the ssh_config or its defaults decide."""

    host: str
    port: int | None = None
    user: str | None = None

    @classmethod
    def parse(cls, text: str) -> Where:
        """``[user@]host`` or ``ssh://[user@]host[:port]``. Raises ContainerError(usage) for anything else."""
        if text.startswith("ssh://"):
            with contextlib.suppress(ValueError):
                url = urlsplit(text)
                if url.hostname and url.path in ("", "/") and url.password is None:
                    return cls(url.hostname, url.port, url.username)
        else:
            user, _, host = text.rpartition("@")
            if host and not host.startswith("-") and not any(c.isspace() or c == "/" for c in text):
                return cls(host, None, user or None)
        raise ContainerError("usage", f"'{text}' names no host.", "Write it as for ssh: host, user@host or ssh://user@host:port.")

    @classmethod
    def parse_jump(cls, text: str) -> Where:
        """A part of ProxyJump: ``[user@]host[:port]``, or a URL."""
        return cls.parse(text if text.startswith("ssh://") else f"ssh://{text}")


@dataclass(frozen=True)
class Output:
    """A finished command. ``code`` is None where a signal ended it."""

    code: int | None
    out: bytes
    err: bytes


class LocalEndpoint(Protocol):
    """What `remote.local.LocalServer` offers: an address, the key it has, and the one key that it accepts."""

    port: int
    host_key: asyncssh.SSHKey
    client_key: asyncssh.SSHKey


@dataclass
class Connection:
    """An open connection. ``closed`` becomes the reason when it ends; ``interactive`` is true where a person was
    asked for a secret, which must never be asked for again by a timer."""

    host: str
    raw: asyncssh.SSHClientConnection
    closed: asyncio.Future[str]
    interactive: bool
    parents: list[asyncssh.SSHClientConnection] = field(default_factory=list)

    async def start(self, command: str, limit_s: float) -> asyncssh.SSHClientProcess[bytes]:
        """Start a command without a terminal, bytes on all three streams. Raises LinkError."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.raw.create_process(command, encoding=None, term_type=None, request_pty=False)
        except TimeoutError as error:
            raise LinkError("timeout", f"{self.host} did not start a command within {limit_s:.0f} s.") from error
        except asyncssh.ChannelOpenError as error:
            if self.closed.done():
                raise LinkError("lost", f"{self.host}: {self.closed.result()}") from error
            raise LinkError("lost", f"{self.host} opened no session: {plain(error.reason)}") from error
        except (asyncssh.Error, OSError) as error:
            raise LinkError("lost", f"The connection to {self.host} ended: {plain(str(error))}") from error

    async def run(self, command: str, stdin: bytes = b"", *, limit_s: float) -> Output:
        """Run a command to its end. Raises LinkError, also where the link ended before the command did."""
        process = await self.start(command, limit_s)
        try:
            async with asyncio.timeout(limit_s):
                out, err = await process.communicate(stdin)
                await process.wait_closed()
        except TimeoutError as error:
            raise LinkError("timeout", f"A command on {self.host} did not end within {limit_s:.0f} s.") from error
        except (asyncssh.Error, OSError) as error:
            raise LinkError("lost", f"The connection to {self.host} ended: {plain(str(error))}") from error
        finally:
            process.close()
        if process.returncode is None:
            reason = self.closed.result() if self.closed.done() else last_line(err or b"") or "no exit status came"
            raise LinkError("lost", f"{self.host}: the link ended before the command did ({reason}).")
        return Output(process.exit_status, out or b"", err or b"")

    def abort(self, reason: str) -> None:
        """Give the connection up without a word to a peer that no longer answers."""
        if not self.closed.done():
            self.closed.set_result(reason)
        for connection in (self.raw, *self.parents):
            connection.abort()

    async def close(self) -> None:
        for connection in (self.raw, *self.parents):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self.raw.wait_closed()
        self.abort("closed")


async def connect(host: str, ask: Ask, settings: Settings) -> Connection:
    """Connect as ``ssh host`` would. The limit does not run while a question is open.

    Raises LinkError: unreachable (nothing answered in time) or refused (host key, login).
    """
    return await _Dialler(host, ask, settings).connect()


async def connect_local(endpoint: LocalEndpoint, settings: Settings) -> Connection:
    """Connect to the embedded server, whose key is known beforehand. Raises LinkError."""
    dialler = _Dialler("this machine", Ask(), settings)
    known = Known("localhost", trusted=[endpoint.host_key.convert_to_public()])
    options = {"client_keys": [endpoint.client_key], "agent_path": None, "port": endpoint.port, "username": getpass.getuser()}
    return await dialler.limited(dialler.attempt("127.0.0.1", known, config=None, via=None, **options))


class _Dialler:
    def __init__(self, host: str, ask: Ask, settings: Settings) -> None:
        self._host = host
        self._ask = ask
        self._settings = settings
        self._prompts = Prompts(host, ask.secret, self._pause)
        self._at = host
        """Which host is dialled now: a jump host on the way, or the host itself."""
        self._scope: asyncio.Timeout | None = None
        self._config = configs(settings)

    async def connect(self) -> Connection:
        return await self.limited(self._dial(Where.parse(self._host), depth=0))

    async def limited(self, dialling: Any) -> Connection:
        """Wait for ``dialling`` within the limit and turn what goes wrong into a LinkError."""
        limit_s = self._settings.connect_limit_s
        try:
            async with asyncio.timeout(limit_s) as self._scope:
                connection: Connection = await dialling
                return connection
        except TimeoutError as error:
            text = f"{self._at} did not answer within {limit_s:.0f} s. Check the address, the network and a VPN."
            raise LinkError("unreachable", text) from error
        except asyncssh.PermissionDenied as error:
            raise LinkError("refused", self._prompts.denied(self._at, plain(error.reason))) from error
        except asyncssh.ConfigParseError as error:
            raise LinkError("unreachable", f"The ssh_config cannot be read: {plain(str(error))}.") from error
        except asyncssh.KeyImportError as error:
            raise LinkError("refused", f"A key of yours for {self._at} cannot be used: {plain(str(error))}.") from error
        except asyncssh.ChannelOpenError as error:
            raise LinkError("unreachable", f"The jump host could not reach {self._at}: {plain(error.reason)}.") from error
        except asyncssh.Error as error:
            raise LinkError("unreachable", f"{self._at} did not complete the SSH handshake: {plain(str(error))}.") from error
        except ValueError as error:
            text = f"The ssh_config asks for something for {self._at} that this console cannot do: {plain(str(error))}."
            raise LinkError("unreachable", text) from error
        except OSError as error:
            raise LinkError("unreachable", _network_sentence(self._at, error)) from error

    async def _dial(self, where: Where, depth: int, via: Connection | None = None) -> Connection:
        if depth > MAX_JUMPS:
            raise LinkError(
                "unreachable", f"{self._host} is behind more than {MAX_JUMPS} jump hosts; look for a loop in ProxyJump."
            )
        given: dict[str, Any] = {
            key: value for key, value in (("port", where.port), ("username", where.user)) if value is not None
        }
        resolved = await asyncssh.SSHClientConnectionOptions.construct(
            host=where.host, config=self._config, client_keys=None, known_hosts=None, **given
        )
        via = via or await self._jumps(getattr(resolved, "tunnel", None), depth)
        self._at = f"{where.host} (on the way to {self._host})" if depth else self._host
        given |= login_options(resolved.config)
        hosts = KnownHosts(self._settings.state_dir / "known_hosts", self._others(resolved))
        try:
            while True:
                known = hosts.known(resolved.host, resolved.port or 22, resolved.host_key_alias)
                if not resolved.config.get("HostKeyAlgorithms"):
                    given["server_host_key_algs"] = known.algorithms()
                try:
                    return await self.attempt(where.host, known, config=self._config, via=via, **given)
                except _UnknownKey as unknown:
                    await self._vouch(hosts, known, unknown.key)
        except BaseException:
            if via is not None:
                via.abort("the host behind it was not reached")
            raise

    async def _jumps(self, tunnel: object, depth: int) -> Connection | None:
        """Open the ProxyJump hosts one through another. The first may have jumps of its own."""
        last: Connection | None = None
        for part in tunnel.split(",") if isinstance(tunnel, str) and tunnel else []:
            last = await self._dial(Where.parse_jump(part.strip()), depth + 1, last)
        return last

    async def attempt(self, host: str, known: Known, *, config: Any, via: Connection | None, **given: Any) -> Connection:
        """One handshake and login. Raises _UnknownKey where the operator has to be asked, before anything is sent."""
        client = Client(known, self._prompts, self._at)
        try:
            raw = await asyncssh.connect(
                host,
                config=config,
                tunnel=via.raw if via else None,
                known_hosts=known.for_asyncssh,
                client_factory=lambda: client,
                passphrase=self._prompts.passphrase(),
                connect_timeout=None,
                login_timeout=0,
                keepalive_interval=self._settings.keepalive_s,
                keepalive_count_max=self._settings.keepalive_count,
                agent_forwarding=False,
                x11_forwarding=False,
                send_env=[],  # nothing of this side's environment leaves it, whatever SendEnv says
                command=None,
                # A banner in another encoding is no reason to fail.
                utf8_decode_errors="replace",
                **given,
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise self._judge(known, client.offered, str(error)) from error
        except asyncssh.KeyExchangeFailed as error:
            if known.trusted and "host key" in str(error):
                raise self._judge(known, None, str(error)) from error
            raise
        parents = [via.raw, *via.parents] if via else []
        return Connection(self._host, raw, client.closed, self._prompts.used, parents)

    def _judge(self, known: Known, offered: asyncssh.SSHKey | None, text: str) -> Exception:
        shown = f" It showed {offered.get_fingerprint('sha256')}." if offered else ""
        if "revoked" in text:
            return LinkError(
                "refused", f"The host key of {known.name} is marked as revoked. Nothing was sent; ask who runs the host."
            )
        if known.certified and not known.trusted:
            return LinkError(
                "refused",
                f"{known.name} showed no certificate of the authority that known_hosts names for it.{shown} Nothing was sent. "
                "Ask who runs the host; the line in known_hosts begins with @cert-authority.",
            )
        if known.trusted or offered is None:
            return LinkError(
                "refused",
                f"The host key of {known.name} is not the one known.{shown} Nothing was sent. If the host was rebuilt, check the "
                "fingerprint with who runs it, then remove the old key with ssh-keygen -R from "
                f"{self._settings.state_dir / 'known_hosts'} and ~/.ssh/known_hosts.",
            )
        return _UnknownKey(offered)

    async def _vouch(self, hosts: KnownHosts, known: Known, key: asyncssh.SSHKey) -> None:
        key_type = key.get_algorithm().removeprefix("ssh-").partition("-")[0].upper()
        question = HostKeyQuestion(self._host, known.name, key_type, key.get_fingerprint("sha256"))
        trusted = False
        if self._ask.host_key is not None:
            with self._pause():
                trusted = await self._ask.host_key(question)
        if not trusted:
            text = f"{known.name} is not known: its {key_type} key is {question.fingerprint}, and "
            if self._ask.host_key:
                raise LinkError("refused", f"{text}it was not accepted. Nothing was sent.")
            raise LinkError(
                "refused",
                f"{text}nobody was there to accept it. Nothing was sent. Compare the fingerprint with who runs the host, then "
                "accept it once in the console or with `eagle3-tui check` on a terminal.",
            )
        try:
            hosts.remember(known.name, key)
        except OSError as error:
            text = (
                f"The key of {known.name} cannot be remembered in {error.filename}: {error.strerror}. Make that folder writable."
            )
            raise LinkError("refused", text) from error

    def _others(self, resolved: asyncssh.SSHClientConnectionOptions) -> Sequence[Path]:
        if self._settings.known_hosts is not None:
            return [self._settings.known_hosts]
        names: list[str] = []
        for option, default in (
            ("UserKnownHostsFile", "~/.ssh/known_hosts"),
            ("GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts"),
        ):
            listed = resolved.config.get(option)
            names += listed if isinstance(listed, list) and listed else [default]
        return [Path(name).expanduser() for name in names]

    def _pause(self) -> contextlib.AbstractContextManager[None]:
        """The limit measures the network, not the person: it stands still while a question is open."""
        return _paused(self._scope, self._settings.connect_limit_s)


class _UnknownKey(Exception):
    def __init__(self, key: asyncssh.SSHKey) -> None:
        super().__init__("unknown host key")
        self.key = key


@contextlib.contextmanager
def _paused(scope: asyncio.Timeout | None, limit_s: float) -> Iterator[None]:
    if scope is not None:
        scope.reschedule(None)
    try:
        yield
    finally:
        if scope is not None and not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time() + limit_s)


def _network_sentence(host: str, error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"There is no host called {host} ({error.strerror}). Check the name, or the alias in your ssh_config."
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{host} refuses connections on that port: no SSH server listens there. Check the port and that the container is up."
        )
    return f"{host} cannot be reached: {plain(getattr(error, 'strerror', None) or str(error))}."
