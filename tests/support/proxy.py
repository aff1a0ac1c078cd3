"""A TCP proxy that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal

Mode = Literal["pass", "swallow"]
Direction = Literal["to_server", "to_client"]

CHUNK_BYTES = 4096


@dataclass
class Cut:
    """Resets everything once ``bytes_left`` more bytes have gone in one direction; 0: before the next one."""

    direction: Direction
    bytes_left: int
    happened: asyncio.Event


class FaultProxy:
    """Stands before a port. Use as an async context manager; ``port`` is where to connect.

    ``mode`` is pass, or swallow: connections stay open and nothing comes through. `abort` resets what is open, `cut` does so
    at a byte. ``delay_s`` is what each direction takes (a connect takes three of them before the server hears of it, as on
    a real line: the handshake, then the way there); ``bytes_per_s`` throttles each direction of each connection.
    ``passed`` counts bytes, ``pieces`` what arrived in one go, ``turns`` how often the client spoke after the server had:
    the round trips.
    """

    def __init__(self, port: int, *, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut: Cut | None = None
        self.mode: Mode = "pass"
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self.pieces: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self.turns = 0
        self._last: Direction = "to_client"
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.abort()

    def abort(self) -> None:
        """Reset every open connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def cut(self, direction: Direction, after_bytes: int) -> asyncio.Event:
        """Reset everything once so many more bytes have gone in ``direction``; the event tells when it has happened."""
        self._cut = Cut(direction, after_bytes, asyncio.Event())
        return self._cut.happened

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        await asyncio.sleep(3 * self.delay_s)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        with contextlib.suppress(OSError):
            # What waits here came while the connection was made: its way is in the three delays already.
            await asyncio.gather(self._carry(reader, far_writer, "to_server"), self._carry(far_reader, writer, "to_client"))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(line, writer, direction))
        began = loop.time()
        try:
            while data := await reader.read(CHUNK_BYTES):
                early = direction == "to_server" and loop.time() - began < self.delay_s / 10
                line.put_nowait((loop.time() + (0 if early else self.delay_s), data))
            line.put_nowait((loop.time() + self.delay_s, b""))
            await sending
        finally:
            sending.cancel()

    async def _send(self, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await line.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data or writer.transport.is_closing():
                writer.close()
                return
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            if self.mode == "swallow":
                continue
            passing = data
            cut = self._cut
            if cut is not None and cut.direction == direction:
                passing = data[: cut.bytes_left]
                cut.bytes_left -= len(passing)
            self.passed[direction] += len(passing)
            self.pieces[direction] += bool(passing)
            self.turns += direction == "to_server" and self._last == "to_client"
            self._last = direction
            writer.write(passing)
            await writer.drain()
            if len(passing) < len(data):
                await self._reset_after(passing, writer)
                return

    async def _reset_after(self, passing: bytes, writer: asyncio.StreamWriter) -> None:
        assert self._cut is not None
        happened, self._cut = self._cut.happened, None
        if passing:
            # A reset throws away what the other end has not read yet, and the bytes before the cut are to arrive.
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self.abort()
        happened.set()
