"""An edge fake: a real HTTP server on loopback that speaks the two endpoints a measurement uses, and can go wrong.

It answers with tokens made from the prompt, and counts drafts as vLLM does; what it says is what its callers must digest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from eagle3.core.acceptance import ACCEPTED, DRAFT_TOKENS, DRAFTS, PER_POSITION
from eagle3.engines.prometheus import parse_counters
from eagle3.runner.handed import Handed
from eagle3.stages.context import StageError

DRAFTS_A_REQUEST, ACCEPTED_A_REQUEST = 10, (4, 2, 1)

OWN_ACCEPTANCE = {"acceptance_histogram": [6, 2, 1, 1], "num_draft_tokens": 30}
"""The same, as an answer tells it."""

TELLS_EACH = "tells-each-answer"
"""A file of this name in the folder of ``as_interpreter`` makes it a vLLM whose answers can tell their acceptance."""


@dataclass
class Reply:
    """An answer that is not the usual one. ``close``: the connection is cut instead, as by a server that dies."""

    status: int = 200
    body: bytes = b"{}"
    close: bool = False
    drips: float = 0.0
    """Seconds for which the body comes byte by byte, never silent for long."""


Script = Callable[[int, Mapping[str, Any]], Reply | None]
"""Given the number of the chat request (from 1) and its body: the unusual answer, or None for the usual one."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """As a real one's. With the library's five, sixteen connections at once wait for seconds until the kernel tries again."""

    def server_bind(self) -> None:
        self.allow_reuse_port = self.server_address[1] != 0  # the port may be held for it, see tests.support.ports
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what many of these tests are about; it needs no traceback on the terminal."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FakeVllm:
    """Context manager with the attributes of VllmServer that a measurement uses. ``late_steps``: readings of the counters
    that still lack the last step, as right after an answer. ``tells_each``: every answer tells its own acceptance."""

    def __init__(
        self,
        script: Script = lambda n, body: None,
        *,
        speculative: bool = True,
        late_steps: int = 0,
        port: int = 0,
        tells_each: bool = False,
    ) -> None:
        self.name = "draft"
        self.model = "target"
        self.pid = os.getpid()
        self.log_path = Path("logs/server-draft.log")
        self.base_url = ""
        self.handed: Handed | None = None
        self._port = port
        self._tells_each = tells_each
        self.requests: list[dict[str, Any]] = []
        self.dead = ""
        self.restless = False
        self.health = 200
        self.models: list[dict[str, Any]] = [{"id": self.model}]
        self.first_token: tuple[int, int] | None = None
        self.shared_limit: int | None = None
        self.in_flight = self.most_in_flight = 0
        self._script = script
        self._speculative = speculative
        self._late = 0
        self._late_steps = late_steps
        self._counted = 0
        self._lock = threading.Lock()
        self._http: ThreadingHTTPServer | None = None

    def __enter__(self) -> FakeVllm:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Keep the tests' output clean."""

            def do_GET(self) -> None:
                if self.path == "/version":
                    self._send(200, b'{"version": "9.9.9"}')
                elif self.path == "/health":
                    self._send(fake.health, b"")
                elif self.path == "/v1/models":
                    self._send(200, json.dumps({"data": fake.models}).encode())
                else:
                    self._send(200, fake.metrics().encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = fake.chat(body)
                if reply.close:
                    self.close_connection = True
                elif reply.drips:
                    self._drip(reply)
                else:
                    self._send(reply.status, reply.body)

            def _drip(self, reply: Reply) -> None:
                pieces = max(1, int(reply.drips / 0.05))
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(reply.body) + pieces))
                self.end_headers()
                for _ in range(pieces):
                    self.wfile.write(b" ")
                    time.sleep(0.05)
                self.wfile.write(reply.body)

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = _Server(("127.0.0.1", self._port), Handler)
        self._http.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()

    def fileno(self) -> int:
        """The socket that it listens on: a process that inherits it is the one that serves, for all that the kernel knows."""
        assert self._http is not None
        return self._http.fileno()

    def check_alive(self) -> None:
        if self.dead:
            raise StageError(self.dead)

    def limit(self) -> int | None:
        return self.shared_limit

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, trust_env=False)

    def counters(self) -> Mapping[str, Any]:
        return parse_counters(httpx.get(f"{self.base_url}/metrics", trust_env=False).text)

    def chat(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            told = {"metrics": {"speculative_decoding": OWN_ACCEPTANCE}} if self._tells_each else {}
            found = self._script(number, body) or Reply(body=json.dumps(completion(body) | told).encode())
        finally:
            with self._lock:
                self.in_flight -= 1
                self._late = self._late_steps
        return found

    def metrics(self) -> str:
        with self._lock:
            requests = len(self.requests)
            if self._late:
                self._late -= 1
                requests -= 1
            if self.restless:
                self._counted += 1
            running = self.in_flight
        labels = 'engine="0",model_name="target"'
        lines = ["# TYPE vllm:num_requests_running gauge", f"vllm:num_requests_running{{{labels}}} {running}"]
        if self.first_token is not None:
            fast, every = self.first_token
            name = "vllm:time_to_first_token_seconds"
            lines.append(f"# TYPE {name} histogram")
            lines += [
                f'{name}_bucket{{{labels},le="{bound}"}} {n}' for bound, n in (("0.1", fast), ("2.5", every), ("+Inf", every))
            ]
            lines += [f"{name}_count{{{labels}}} {every}", f"{name}_sum{{{labels}}} 1.0"]
        if self._speculative:
            values = {
                DRAFTS: DRAFTS_A_REQUEST * requests + self._counted,
                DRAFT_TOKENS: 3 * DRAFTS_A_REQUEST * requests,
                ACCEPTED: sum(ACCEPTED_A_REQUEST) * requests,
            }
            for name, value in values.items():
                lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {value}"]
            lines.append(f"# TYPE {PER_POSITION} counter")
            lines += [f'{PER_POSITION}{{{labels},position="{i}"}} {n * requests}' for i, n in enumerate(ACCEPTED_A_REQUEST)]
        return "\n".join(lines) + "\n"


def as_interpreter(folder: Path, *, fails_with: str = "") -> str:
    """A program to set as ``server_python``: it takes vLLM's command line, keeps it in ``folder/argv.jsonl``, and serves as the
    fake does, with a draft where it is given one; or says ``fails_with`` and ends, when it is given one."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"from tests.stages.fake_vllm import main; main(sys.argv, {str(folder)!r}, {fails_with!r})\n"
    )
    program.chmod(0o755)
    return str(program)


def main(argv: list[str], folder: str, fails_with: str) -> None:
    """What the program of ``as_interpreter`` does."""
    if argv[1] == "-c":  # a look at vLLM's source
        print((Path(folder) / TELLS_EACH).exists())
        return
    with (Path(folder) / "argv.jsonl").open("a") as file:
        file.write(json.dumps(argv) + "\n")
    speculative = "--speculative_config" in argv
    if fails_with and speculative:
        raise SystemExit(fails_with)
    tells_each = "--per-request-spec-decode-metrics" in argv
    with FakeVllm(speculative=speculative, port=int(argv[argv.index("--port") + 1]), tells_each=tells_each):
        signal.pause()


def completion(body: Mapping[str, Any], *, tokens: int | None = None) -> dict[str, Any]:
    """A chat completion of the words of the prompt over and over, up to max_tokens."""
    words = str(body["messages"][-1]["content"]).split()
    count = int(body["max_tokens"]) if tokens is None else tokens
    said = [f" {words[i % len(words)]}" for i in range(count)]
    choice: dict[str, Any] = {"finish_reason": "length", "message": {"role": "assistant", "content": "".join(said)}}
    if body.get("return_token_ids"):
        choice["token_ids"] = [sum(map(ord, word)) for word in said]
    if body.get("logprobs"):
        choice["logprobs"] = {
            "content": [
                {
                    "token": word,
                    "logprob": -0.5,
                    "top_logprobs": [{"token": word, "logprob": -0.5}, {"token": " or", "logprob": -2.0}],
                }
                for word in said
            ]
        }
    return {"choices": [choice], "usage": {"prompt_tokens": len(words), "completion_tokens": count}}
