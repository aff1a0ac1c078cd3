"""A real HTTP server on loopback that takes webhooks, as slow or as unwilling as a test wants it."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """``url`` is where to post; ``bodies`` and ``headers`` hold what came. ``behave`` is a status, "hang" or "drip"."""

    def __init__(self, behave: int | str = 200) -> None:
        self.behave = behave
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.paths.append(self.path)
                outer.headers.append(dict(self.headers))
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if outer.behave == "hang":
                    outer.released.wait(60)
                    return
                if outer.behave == "drip":
                    self.wfile.write(b"HTTP/1.0 200 OK\r\n")
                    while not outer.released.wait(0.1):
                        self.wfile.write(b"X-Drip: 1\r\n")
                    return
                self.send_response(int(outer.behave))
                if int(outer.behave) // 100 == 3:
                    self.send_header("Location", f"{outer.url}/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # whoever asked has given up, as the test wants
                    super().handle()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
