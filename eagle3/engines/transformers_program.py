"""transformers behind the requests that a run sends to vLLM: chat answers with token ids, or files of hidden states.

``python -m eagle3.engines.transformers_program --model FOLDER --port N …``; a process of its own, so that it is watched, started
again and ended as a vLLM server is, and gives its memory back at the end of the stage. For targets that one device holds.
With ``--states FOLDER --layers 2,15,27,30`` it extracts and does not answer; else it answers and does not extract.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BATCH = 16
"""Answers made at once at most."""

_GATHER_S = 0.02
_ANSWER_LIMIT_S = 24 * 3600.0


class Refused(ValueError):
    """A request that will never be answered; the message says why."""


@dataclass
class Job:
    """A request on its way to the thread that computes. ``work`` is what ``Backend.compute`` understands."""

    work: Any
    done: threading.Event = field(default_factory=threading.Event)
    found: Any = None
    error: Exception | None = None


class Backend:
    """The one thread that computes, and the counters that vLLM would show."""

    def __init__(self, compute: Callable[[list[Any]], list[Any]], *, batch: int) -> None:
        """``compute`` gets up to ``batch`` pieces of work and gives as many results."""
        self._compute = compute
        self._batch = batch
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._lock = threading.Lock()
        self.running = self.prompt_tokens = self.generation_tokens = 0
        threading.Thread(target=self._run, name="model", daemon=True).start()

    def ask(self, work: Any, prompt_tokens: int, made_tokens: Callable[[Any], int]) -> Any:
        """The result for one piece of work; blocks until it is there. Raises RuntimeError when computing it failed."""
        job = Job(work)
        with self._lock:
            self.running += 1
        try:
            self._jobs.put(job)
            if not job.done.wait(_ANSWER_LIMIT_S):
                raise TimeoutError(f"no result within {_ANSWER_LIMIT_S:.0f} s")
            if job.error is not None:
                raise RuntimeError(f"{type(job.error).__name__}: {job.error}") from job.error
            with self._lock:
                self.prompt_tokens += prompt_tokens
                self.generation_tokens += made_tokens(job.found)
            return job.found
        finally:
            with self._lock:
                self.running -= 1

    def metrics(self) -> str:
        """The counters by vLLM's names, so that whoever watches a server need not know which kind it is."""
        values = {
            "vllm:num_requests_running": ("gauge", self.running),
            "vllm:prompt_tokens_total": ("counter", self.prompt_tokens),
            "vllm:generation_tokens_total": ("counter", self.generation_tokens),
        }
        return "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, (kind, value) in values.items())

    def _run(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            try:
                while len(jobs) < self._batch:
                    jobs.append(self._jobs.get(timeout=_GATHER_S))
            except queue.Empty:
                # Whoever comes later is in the next batch.
                self._answer(jobs)
            else:
                self._answer(jobs)

    def _answer(self, jobs: list[Job]) -> None:
        try:
            for job, found in zip(jobs, self._compute([job.work for job in jobs]), strict=True):
                job.found = found
        except Exception as error:  # noqa: BLE001 - out of memory, a model's own errors: the request that caused it is told
            for job in jobs:
                job.error = error
        for job in jobs:
            job.done.set()


class Chat:
    """Answers ``/v1/chat/completions``."""

    path = "/v1/chat/completions"

    def __init__(self, about: argparse.Namespace) -> None:
        from eagle3.engines.transformers_generate import Generator
        from eagle3.stages.samples import Template

        self._template = Template(about.model, trust_remote_code=about.trust_remote_code)
        self._limit = about.max_model_len
        generator = Generator(
            about.model, end_ids=self._template.end_ids(), dtype=about.dtype, device=about.device,
            trust_remote_code=about.trust_remote_code,
        )  # fmt: skip
        self.backend = Backend(generator.answer, batch=BATCH)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer to a chat request, with token ids. Raises Refused where prompt and answer may not fit."""
        from eagle3.engines.transformers_generate import Asked

        prompt_ids = self._template.render(body["messages"])
        most = int(body["max_tokens"])
        if not 1 <= most <= self._limit - len(prompt_ids):
            raise Refused(
                f"This model's maximum context length is {self._limit} tokens; the prompt has {len(prompt_ids)} and max_tokens "
                f"is {most}."
            )
        asked = Asked(prompt_ids, most, float(body.get("temperature") or 0), int(body.get("seed") or 0))
        found = self.backend.ask(asked, len(prompt_ids), lambda answered: len(answered.token_ids))
        content = self._template.decode(found.token_ids)
        choice = {
            "index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": found.finish,
            "token_ids": found.token_ids,
        }  # fmt: skip
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(found.token_ids)}
        return {"prompt_token_ids": prompt_ids, "choices": [choice], "usage": usage}


class States:
    """Answers ``/v1/completions`` with the path of a file of hidden states, as vLLM's connector does."""

    path = "/v1/completions"

    def __init__(self, about: argparse.Namespace) -> None:
        from eagle3.engines.transformers_engine import TransformersEngine

        layers = [int(layer) for layer in about.layers.split(",")]
        self._engine = TransformersEngine(
            about.model, layers, dtype=about.dtype, device=about.device, trust_remote_code=about.trust_remote_code
        )
        self._folder: Path = about.states
        self._limit = about.max_model_len
        # One at a time: a batch's padding would change the rounding, and nothing vouches for its rows.
        self.backend = Backend(self._compute, batch=1)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer that names the file. Raises Refused where the prompt is none of token ids, or too long."""
        ids = body["prompt"]
        if not isinstance(ids, list) or not ids or len(ids) >= self._limit:
            raise Refused(f"The prompt must be 1 to {self._limit - 1} token ids.")
        path = self.backend.ask(ids, len(ids), lambda found: 0)
        return {"choices": [{"index": 0, "text": ""}], "kv_transfer_params": {"hidden_states_path": str(path)}}

    def _compute(self, work: list[Any]) -> list[Path]:
        import torch
        from safetensors.torch import save_file

        found = []
        for ids in work:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{uuid.uuid4().hex}.safetensors"
            building = path.with_suffix(".part")
            tensors = {"hidden_states": self._engine.states(ids).contiguous(), "token_ids": torch.tensor(ids, dtype=torch.long)}
            save_file(tensors, building)
            found.append(building.rename(path))
        return found


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def handler(model: str, answering: Chat | States) -> type[BaseHTTPRequestHandler]:
    """What serves one connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Requests are not logged; what fails is."""

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200, b"")
            elif self.path == "/v1/models":
                self._json(200, {"data": [{"id": model}]})
            elif self.path == "/metrics":
                self._send(200, answering.backend.metrics().encode())
            else:
                self._json(404, {"error": {"message": f"{self.path} is not served here"}})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path != answering.path:
                self._json(404, {"error": {"message": f"this server answers {answering.path} only"}})
                return
            try:
                self._json(200, answering.reply(json.loads(content)))
            except (Refused, KeyError, TypeError, ValueError) as error:
                self._json(400, {"error": {"message": f"{type(error).__name__}: {error}"}})
            except Exception as error:  # noqa: BLE001 - told to the one who asked, and to the log
                sys.stderr.write(f"{error}\n")
                self._json(500, {"error": {"message": str(error)}})

        def _json(self, status: int, value: Any) -> None:
            self._send(status, json.dumps(value).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main(argv: list[str] | None = None) -> None:
    """Load the target, then serve until a signal ends the process. Raises StageError when it cannot be loaded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--states", type=Path)
    parser.add_argument("--layers", default="")
    about = parser.parse_args(argv)
    answering = States(about) if about.states is not None else Chat(about)
    _Listener(("127.0.0.1", about.port), handler(about.served_model_name, answering)).serve_forever()


if __name__ == "__main__":
    main()
