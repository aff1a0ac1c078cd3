"""The one helper channel: a JSON line out, a packed frame of JSON back, many requests at a time.

A frame is the channel's marker, ``=``, a number of bytes, ``:`` and so many bytes of one zlib stream; whatever stands before
the marker (a MOTD, a chatty ``.bashrc``, half a line without an end) is noise and passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote.errors import ContainerError, LinkError
from remote.text import last_line, plain

if TYPE_CHECKING:
    import asyncssh

    from remote.connection import Connection

CHUNK_BYTES = 1 << 16
MAX_REPLY_BYTES = 64 << 20
STDERR_BYTES = 1 << 14
REASON_LIMIT_S = 1.0
HEAD_BYTES = 12
"""The longest that "=", a frame's length and ":" can be."""
_HEAD = re.compile(rb"=(\d{1,10}):")


@dataclass(frozen=True)
class Reply:
    """``now`` is the container's clock when it answered: ages are counted from it."""

    now: float
    result: dict[str, Any]


class Unreadable(Exception):
    """The stream of frames is broken: nothing after this can be read."""


class Frames:
    """Takes the helper's output apart."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._pending = bytearray()
        self._unpacker = zlib.decompressobj()

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """The messages that ``chunk`` completes. Raises Unreadable."""
        self._pending += chunk
        while (body := self._next()) is not None:
            try:
                yield json.loads(self._unpacked(body))
            except (zlib.error, ValueError) as error:
                raise Unreadable(f"{type(error).__name__}: {error}") from error

    def _next(self) -> bytes | None:
        """The next frame's bytes, once they are all there."""
        pending, head = self._pending, len(self._marker)
        while (at := pending.find(self._marker)) >= 0:
            del pending[:at]
            found = _HEAD.match(pending, head)
            if found is None and len(pending) >= head + HEAD_BYTES:
                # A shell that repeats its command shows the marker too.
                del pending[:head]
                continue
            if found is None:
                return None
            length = int(found[1])
            if length > MAX_REPLY_BYTES:
                raise Unreadable(f"a reply of more than {MAX_REPLY_BYTES >> 20} MiB")
            if len(pending) < found.end() + length:
                return None
            body = bytes(pending[found.end() : found.end() + length])
            del pending[: found.end() + length]
            return body
        # Noise without an end: keep only what could still be the beginning of a marker.
        del pending[: max(0, len(pending) - head)]
        return None

    def _unpacked(self, body: bytes) -> bytes:
        content = self._unpacker.decompress(body, MAX_REPLY_BYTES)
        if self._unpacker.unconsumed_tail:
            raise Unreadable(f"a reply of more than {MAX_REPLY_BYTES >> 20} MiB")
        return content


class HelperChannel:
    """Use `open`. ``closed`` becomes the reason when the helper or the link is gone."""

    def __init__(self, connection: Connection, process: asyncssh.SSHClientProcess[bytes], marker: str) -> None:
        self._host = connection.host
        self._connection = connection
        self._process = process
        self._frames = Frames(marker.encode())
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._errors = b""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.exit_code: int | None = None
        self.heard_at = asyncio.get_running_loop().time()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    @classmethod
    async def open(cls, connection: Connection, command: str, marker: str, limit_s: float) -> HelperChannel:
        """Start the helper. It is up only once it has answered ``hello``. Raises LinkError."""
        return cls(connection, await connection.start(command, limit_s), marker)

    async def request(self, verb: str, args: dict[str, Any], limit_s: float) -> Reply:
        """Ask and wait at most ``limit_s`` seconds.

        Raises ContainerError (the helper's own "no") or LinkError: timeout, or lost where the channel has ended.
        """
        if self.closed.done():
            raise LinkError("lost", self.closed.result())
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(limit_s):
                await self._send({"id": number, "verb": verb, "args": args})
                answer = await future
        except TimeoutError as error:
            raise LinkError("timeout", f"{self._host} did not answer '{verb}' within {limit_s:.0f} s.") from error
        finally:
            self._waiting.pop(number, None)
        return _reply(answer)

    async def close(self) -> None:
        """End the helper by closing its stdin, as it expects."""
        with contextlib.suppress(OSError):
            self._process.stdin.write_eof()
        self._process.close()
        self._end("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            self._process.stdin.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            # The reader task finds the reason; it is the one to tell.
            raise LinkError("lost", await self._reason_of(error)) from error

    async def _reason_of(self, error: OSError) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REASON_LIMIT_S):
                return await asyncio.shield(self.closed)
        return f"The channel to {self._host} broke: {error}"

    async def _read(self) -> None:
        try:
            while chunk := await self._process.stdout.read(CHUNK_BYTES):
                self.heard_at = asyncio.get_running_loop().time()
                for message in self._frames.feed(chunk):
                    self._answered(message)
            await self._process.wait_closed()
            self.exit_code = self._process.exit_status
        except Unreadable as error:
            self._end(f"{self._host} sent what cannot be read: {error}.")
            self._process.close()
        except _ssh_errors() as error:
            self._end(f"The connection to {self._host} ended: {plain(str(error)) or type(error).__name__}")
        else:
            self._end(await self._last_words())
        finally:
            # Whatever ended the reader, nobody may go on waiting for it.
            self._end(f"The channel to {self._host} is no longer read.")

    def _answered(self, message: Any) -> None:
        future = self._waiting.pop(message.get("id", 0), None) if isinstance(message, dict) else None
        if future is not None and not future.done():
            future.set_result(message)

    async def _read_errors(self) -> None:
        with contextlib.suppress(*_ssh_errors()):
            # Why the link ended is told by the reader of stdout; here only the helper's last words are kept.
            while chunk := await self._process.stderr.read(CHUNK_BYTES):
                self._errors = (self._errors + chunk)[-STDERR_BYTES:]

    async def _last_words(self) -> str:
        if self.exit_code is None:
            # The channel hears of a lost connection a moment before the connection itself says why.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REASON_LIMIT_S):
                    return f"The connection to {self._host} ended: {await asyncio.shield(self._connection.closed)}"
        said = last_line(self._errors)
        how = "was ended by a signal" if self.exit_code is None else f"ended with code {self.exit_code}"
        return f"The helper on {self._host} {how}" + (f": {said}" if said else ".")

    def _end(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkError("lost", self.closed.result()))


def _reply(message: dict[str, Any]) -> Reply:
    if message.get("ok"):
        return Reply(float(message.get("now") or 0.0), message.get("result") or {})
    error = message.get("error") or {}
    raise ContainerError(
        str(error.get("code") or "failed"),
        plain(str(error.get("text") or "The helper gave no reason.")),
        plain(str(error.get("remedy") or "")),
        plain(str(error.get("detail") or "")),
    )


def _ssh_errors() -> tuple[type[Exception], ...]:
    import asyncssh

    return (asyncssh.Error, OSError)
