"""vLLM servers: processes with a real command line that answer as sick and well ones do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner.facts import vllm
from tests.readiness.light import SMOL, changed, fault, gathered, judged, mended, tree, unclear
from tests.runner.support import wait_for
from tests.support.sshd import free_port

SERVER = """
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STATUS, RUNNING, RATE, NAMES = {}, 0, 0, ["target"]
EXTRA = ""
asked = {"/metrics": 0}

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        tokens = 100 + RATE * asked["/metrics"]
        asked[self.path] = asked.get(self.path, 0) + 1
        import json
        metrics = f'vllm:num_requests_running{{engine="0"}} {RUNNING}\\nvllm:num_requests_waiting{{engine="0"}} 0\\n'
        metrics += f'vllm:prompt_tokens_total{{engine="0"}} {tokens}\\nvllm:generation_tokens_total{{engine="0"}} {tokens}\\n'
        bodies = {"/health": "", "/v1/models": json.dumps({"data": [{"id": name} for name in NAMES]}),
                  "/metrics": EXTRA or metrics, "/version": '{"version": "0.32.0"}'}
        self.send_response(STATUS.get(self.path, 200) if self.path in bodies else 404)
        self.end_headers()
        self.wfile.write(bodies.get(self.path, "").encode())

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
"""

Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process whose command line is a vLLM server's, with Python lines that make it ill; gives its address."""
    children: list[subprocess.Popen[bytes]] = []

    def make(more: str = "", *arguments: str) -> str:
        site = tmp_path / f"site{len(children)}"
        folders = ("vllm", "vllm/entrypoints", "vllm/entrypoints/openai")
        tree(site, {f"{folder}/__init__.py": "" for folder in folders})
        tree(site, {"vllm/entrypoints/openai/api_server.py": f"{SERVER}\n{more}\nserver.serve_forever()\n"})
        port = free_port()  # nobody else's meanwhile, as one that the kernel gave would be
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--port", str(port), *arguments]
        children.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path))

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens)
        return f"http://127.0.0.1:{port}"

    yield make
    for child in children:
        child.kill()
        child.wait()


def facts_of(url: str, *, named: bool = True, **more: Any) -> dict[str, Any]:
    """The facts of that server alone: other tests run servers on this machine too."""
    found = gathered("vllm", urls=[url] if named else [], watch_s=0.1, **more)
    return changed(found, "vllm.servers", [server for server in found["vllm"]["servers"] if server["url"] == url])


WELL = ("vllm.health", "vllm.model", "vllm.metrics", "vllm.moving", "vllm.arguments", "vllm.max_model_len")


def test_a_server_that_works_passes_every_check(start: Start) -> None:
    facts = facts_of(start("RUNNING, RATE = 3, 50", "--max-model-len", "4k"))
    for id in WELL:
        mended(id, facts, SMOL)
    told = mended("vllm.moving", facts)[0].evidence
    assert "3 requests running" in told and not told.startswith("0 tokens")
    assert "version 0.32.0" in mended("vllm.health", facts)[0].evidence


def test_a_server_that_answers_200_and_generates_nothing_is_told_by_its_counters(start: Start) -> None:
    facts = facts_of(start("RUNNING = 4"))
    mended("vllm.health", facts)
    fault("vllm.moving", facts, "0 tokens in 0.1 s with 4 requests running", status="fail")
    stranger = facts_of(start("RUNNING = 4"), named=False)
    fault("vllm.moving", stranger, "0 tokens in 0.1 s", status="warn")


def test_an_idle_server_proves_nothing_and_is_skipped(start: Start) -> None:
    assert [c.status for c in judged("vllm.moving", facts_of(start()))] == ["skipped"]


def test_a_server_that_is_down_or_silent_is_told_by_process(start: Start) -> None:
    fault("vllm.health", facts_of(start("STATUS['/health'] = 503")), "/health answers 503", status="fail")
    fault("vllm.health", facts_of("http://127.0.0.1:9"), "/health does not answer", status="fail")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fault("vllm.health", facts_of(f"http://127.0.0.1:{silent.getsockname()[1]}"), " answer", status="fail")


def test_a_server_that_loads_is_unknown(start: Start) -> None:
    url = start("server.handle_request(); server.socket.close(); import time; time.sleep(600)")
    wait_for(lambda: facts_of(url, named=False)["vllm"]["servers"][0]["health"] == "unknown")
    unclear("vllm.health", facts_of(url, named=False), "loading")


def test_another_model_than_asked_for_fails_where_the_server_was_named(start: Start) -> None:
    url = start("NAMES = ['old-model']")
    fault("vllm.model", facts_of(url), "it serves old-model, asked for is target", SMOL, status="fail")
    mended("vllm.model", facts_of(url, named=False), SMOL)
    unclear("vllm.model", facts_of(start("STATUS['/v1/models'] = 401")), "API key", SMOL)


def test_metrics_that_are_missing_or_foreign_are_told(start: Start) -> None:
    fault("vllm.metrics", facts_of(start("STATUS['/metrics'] = 404")), "/metrics answers 404")
    fault("vllm.metrics", facts_of(start("EXTRA = 'python_gc_objects_collected_total 9\\n'")), "none of vLLM's own figures")


EXTRACT = ["--speculative_config", json.dumps({"method": "extract_hidden_states", "num_speculative_tokens": 1})]
CONNECT = ["--kv-transfer-config", json.dumps({"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"})]


def test_a_server_in_extraction_mode_is_recognised_and_must_not_generate(start: Start) -> None:
    url = start("", *EXTRACT, *CONNECT, "--no-enable-prefix-caching")
    fault("vllm.arguments", facts_of(url), "it was named to generate with", status="fail")
    told = mended("vllm.arguments", facts_of(url, named=False))
    assert "extracts hidden states: m, method extract_hidden_states" in told[0].evidence
    mended("vllm.prefix_cache", facts_of(url, named=False))
    bare = start("", *EXTRACT)
    fault("vllm.arguments", facts_of(bare, named=False), "no connector")
    fault("vllm.prefix_cache", facts_of(bare, named=False), "on by default")
    unclear("vllm.arguments", facts_of(start("", "--speculative-config", "{'method': 1}")), "cannot be read")


def test_a_server_that_accepts_shorter_texts_than_the_run_s_fails(start: Start) -> None:
    url = start("", "--max-model-len=512")
    fault("vllm.max_model_len", facts_of(url), "512 tokens, the run goes to 1,024", SMOL, status="fail")
    unclear("vllm.max_model_len", facts_of(start("", "--max-model-len", "auto")), "auto", SMOL)


COMMANDS = [
    ("vllm serve org/m --enable-prefix-caching", {"model": "org/m", "enable-prefix-caching": True}, "plain"),
    ("vllm serve --model=m -tp 8 --dtype bfloat16", {"model": "m", "tensor-parallel-size": "8", "dtype": "bfloat16"}, "plain"),
    ('vllm serve m --speculative-config {"method":"eagle3","model":"d","num_speculative_tokens":3}',
     {"model": "m", "speculative-config": {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}}, "draft"),
    ("vllm serve m --api-key secret-text", {"model": "m"}, "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "given", "kind"), COMMANDS)
def test_a_command_line_is_read_as_vllm_reads_it_and_secrets_are_left_out(command: str, given: dict[str, Any], kind: str) -> None:
    assert vllm.arguments(command.split()) == given
    assert vllm.kind(given) == kind


def test_a_port_that_is_taken_fails_with_the_process_that_has_it() -> None:
    fixed = SMOL.model_copy(update={"server": SMOL.server.model_copy(update={"port": 1})})
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        told = fault(
            "vllm.port", gathered("vllm", port=taken), f"{taken} is taken by process {os.getpid()}", fixed, status="fail"
        )
        assert "server.port = 0" in told.remedy
    mended("vllm.port", gathered("vllm", port=taken), fixed)
    mended("vllm.port", gathered("vllm"), SMOL)


def test_a_unit_that_was_restarted_is_told(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = start()
    monkeypatch.setattr(vllm, "DEADLINE_S", 30.0)

    def unit(lines: str) -> dict[str, Any]:
        tool = tree(tmp_path / "bin", {"systemctl": f"#!/bin/sh\nprintf '{lines}'\n"}) / "systemctl"
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        return changed(facts_of(url), "vllm.servers.0.unit", {"name": "vllm.service", **vllm.restarts("vllm.service")})

    fault("vllm.unit", unit("NRestarts=3\\nSubState=running\\n"), "vllm.service: 3 restarts, running")
    mended("vllm.unit", unit("NRestarts=0\\nSubState=running\\n"))
    unclear("vllm.unit", unit(""), "restarts unknown")


def test_no_server_is_no_fault() -> None:
    none = changed(gathered("vllm"), "vllm.servers", [])
    assert [(c.id, c.status) for c in judged("vllm.health", none)] == [("vllm.health", "skipped")]
