"""What the tests of the deep probes share: wants, judging, a server that only pretends."""

from __future__ import annotations

import json
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eagle3.core.readiness import checks
from eagle3.core.readiness.registry import REGISTRY, Context
from eagle3.core.readiness.report import Check
from eagle3.runner import identity, proctable

TARGET = Path("~/.cache/eagle3/targets/smollm2-135m").expanduser()
ROOT = Path(__file__).resolve().parents[2]
assert checks.__all__, "importing them declares the checks"


def wants(workspace: Path, **more: Any) -> dict[str, Any]:
    """What a run on this machine would ask for."""
    python = sys.executable
    expect = {"device": "cpu", "hidden_size": 576, "num_hidden_layers": 30, "max_model_len": 1024, "rank_counts": [2]}
    asked = {"workspace": str(workspace), "paths": [], "pythons": {"worker": python, "server": python}, "expect": expect}
    return {**asked, "model": str(TARGET), **more}


def judged(section: str, facts: dict[str, Any]) -> dict[str, Check]:
    """The checks that read this one section, by id."""
    report = REGISTRY.report({"now": 1.0, section: facts}, Context(deep=True, asked=frozenset({section})), host="here", deep=True)
    return {check.id: check for check in report.checks}


def status(section: str, facts: dict[str, Any]) -> dict[str, str]:
    return {name: check.status for name, check in judged(section, facts).items()}


def package(folder: Path, name: str, body: str = "", *, version: str = "", requires: tuple[str, ...] = ()) -> Path:
    """A package on a folder of its own; with ``version`` it is an installed distribution too."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(body)
    if version:
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (about / "METADATA").write_text("\n".join(lines) + "\n")
    return folder


def fill_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """A wheel of one module, as small as one can be."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{about}/RECORD": record}.items():
            wheel.writestr(path, content)


class Pretender:
    """A real HTTP server with vLLM's endpoints. ``tokens`` is what a completion generates; ``hang`` answers none."""

    def __init__(self, *, tokens: int = 1, hang: bool = False, busy: bool = False, status: int = 200) -> None:
        self.tokens, self.hang, self.busy, self.status = tokens, hang, busy, status
        self.asked = 0
        self.counted = 100
        self.extra: dict[str, Any] = {}
        self.release = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Keep the tests' output clean."""

            def do_GET(self) -> None:
                outer.counted += 7 * outer.busy
                metrics = (
                    f'vllm:num_requests_running{{engine="0"}} {float(outer.busy)}\n'
                    f'vllm:prompt_tokens_total{{engine="0"}} 10.0\nvllm:generation_tokens_total{{engine="0"}} {outer.counted}.0\n'
                )
                bodies = {"/v1/models": '{"data": [{"id": "target"}]}', "/metrics": metrics}
                self._send(200, bodies.get(self.path, ""))

            def do_POST(self) -> None:
                outer.asked += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                if outer.hang:
                    outer.release.wait(30)
                text = " Paris" if outer.tokens else ""
                body = {"choices": [{"text": text}], "usage": {"completion_tokens": outer.tokens}, **outer.extra}
                self._send(outer.status, json.dumps(body))

            def _send(self, status: int, body: str) -> None:
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that gave up is what this is about
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.release.set()
            server.shutdown()
            server.server_close()


def tree(folder: Path) -> list[str]:
    """Every path below ``folder``."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def gone(pid: int, *, deadline_s: float = 20.0) -> bool:
    """Whether the process ends within the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = identity.stat(pid)
        if found is None or not proctable.is_live(found):
            return True
        time.sleep(0.02)
    return False
