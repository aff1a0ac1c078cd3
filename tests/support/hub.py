"""A model hub on loopback: as much of the hub's protocol as the real client needs, and the ways in which a network fails."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + "0" * 34
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<name>.+)")
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>[^/?]+)")


class Hub:
    """One repository. ``status``: what every question is answered with instead; ``stall``: the file in whose middle the line goes
    dead until ``release``; ``sent``: the files whose content was asked for."""

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        self.repo, self.files = repo, dict(files)
        self.status: tuple[int, str] | None = None
        self.stall = ""
        self.stalled = threading.Event()
        self.release = threading.Event()
        self.sent: list[str] = []
        self.url = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing to stderr."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            if hub.status is not None:
                code, why = hub.status
                self.reply(code, b"{}", {"X-Error-Code": why, "X-Error-Message": why}, body=body)
                return
            if (api := _API.match(self.path)) and api["repo"] == hub.repo:
                found: Any = {"id": hub.repo, "sha": COMMIT, "siblings": []} if api["what"] == "revision" else tree()
                self.reply(200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body=body)
            elif (file := _RESOLVE.match(self.path)) and file["repo"] == hub.repo and file["name"] in hub.files:
                self.file(file["name"], body=body)
            else:
                self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)

        def file(self, name: str, *, body: bool) -> None:
            content = hub.files[name]
            head = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": COMMIT}
            if body:
                hub.sent.append(name)
            self.reply(200, content, head, body=body, stall=name == hub.stall)

        def reply(self, code: int, content: bytes, headers: Mapping[str, str], *, body: bool, stall: bool = False) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not body:
                return
            if stall:
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                hub.stalled.set()
                hub.release.wait(60)
                self.close_connection = True
                return
            self.wfile.write(content)

    def etag(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    def tree() -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": etag(content)} for name, content in hub.files.items()
        ] + [{"type": "directory", "path": "original", "oid": "0"}]

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
