"""A TCP proxy that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

Mode = Literal["pass", "swallow"]


class FaultProxy:
    """``mode``: pass, or swallow (connections stay open and nothing comes through). `abort` resets what is open;
    ``abort_after_bytes`` does so once so many bytes have gone to the server."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.mode: Mode = "pass"
        self.abort_after_bytes: int | None = None
        self.to_server_bytes = 0
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, far_writer, True), self._pump(far_reader, writer, False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_server: bool) -> None:
        while data := await reader.read(4096):
            if to_server:
                self.to_server_bytes += len(data)
                if self.abort_after_bytes is not None and self.to_server_bytes > self.abort_after_bytes:
                    self.abort()
                    return
            if self.mode == "pass":
                writer.write(data)
                await writer.drain()
        writer.close()
