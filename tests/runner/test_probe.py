"""One question tells what is in the container: machine, disks, GPUs, vLLM servers, runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.records import Probe
from eagle3.runner import host, identity, rundir, verbs, vllm
from eagle3.runner.launch import launch
from tests.runner.support import Channel, shell, wait_for
from tests.support.sshd import free_port

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        bodies = {"/health": b"", "/v1/models": b'{"data": [{"id": "target"}]}', "/metrics": METRICS}
        self.send_response(STATUS.get(self.path, 200) if self.path in bodies else 404)
        self.end_headers()
        self.wfile.write(bodies.get(self.path, b""))

    def log_message(self, *_):
        pass

METRICS = b'''# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="target"} 3.0
vllm:num_requests_running{engine="1",model_name="target"} 1.0
vllm:num_requests_waiting{engine="0",model_name="target"} 2.0
vllm:num_requests_waiting_by_reason{engine="0"} 9.0
'''
STATUS = {}
server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Any]:
    """Starts a process whose command line is a vLLM server's and that answers what one answers; gives (url, pid)."""
    package = tmp_path / "site/vllm/entrypoints/openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    children: list[subprocess.Popen[bytes]] = []

    def start(more: str = "") -> tuple[str, int]:
        (package / "api_server.py").write_text(SERVER + more + "\nserver.serve_forever()\n")
        port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--port", str(port)]
        child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path)
        children.append(child)

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens)
        return f"http://127.0.0.1:{port}", child.pid

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_server_whose_process_lives_but_does_not_listen_yet_is_loading_not_down(stand_in: Any) -> None:
    url, _ = stand_in("server.handle_request(); server.socket.close(); import time; time.sleep(600)")
    # While it closes its port a question may still be let in and then cut off.
    assert "loading" in told(url, "unknown")["text"]


def told(url: str, health: str, *, urls: tuple[str, ...] = ()) -> dict[str, Any]:
    """What is told of the server once it is ``health``: it has two seconds for its answer, and the machine may be busy."""
    return wait_for(lambda: found if (found := server_at(url, vllm.servers([], urls)))["health"] == health else None)


def server_at(url: str, servers: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = [server for server in servers if server["url"] == url]
    return found


def test_the_answer_is_what_the_console_reads(workspace: Path, channel: Channel, tmp_path: Path) -> None:
    launch(workspace, "old", "", shell("exit 0"))
    launch(workspace, "new", "", shell("exec sleep 600"))
    answer = channel.result("probe", workspace=str(workspace), paths=[str(tmp_path), "/proc"], urls=[])
    found = Probe.model_validate(answer)
    assert [run.run_id for run in found.runs] == ["new", "old"], "the newest comes first"
    assert found.host["cpus"] >= 1 and found.host["memory_total_bytes"] > 0 and found.host["boot_id"] == identity.boot_id()
    assert found.gpu.status in ("none", "ok", "unknown")
    assert found.disks[0].path == str(workspace) and (found.disks[0].free_bytes or 0) > 0 and found.disks[0].fstype
    mounts = [disk.mount for disk in found.disks]
    assert len(mounts) == len(set(mounts)), "one line a mount"
    assert set(answer["disks"][0]) == {
        "path",
        "mount",
        "fstype",
        "total_bytes",
        "free_bytes",
        "free_inodes",
        "read_only",
        "error",
    }


def test_a_workspace_that_is_not_there_yet_is_answered_for(channel: Channel, tmp_path: Path) -> None:
    answer = channel.result("probe", workspace=str(tmp_path / "not/yet"))
    assert answer["runs"] == [] and answer["disks"][0]["free_bytes"] > 0
    assert not (tmp_path / "not").exists()


def test_a_server_in_the_process_table_is_found_and_asked(workspace: Path, stand_in: Any) -> None:
    url, pid = stand_in()
    told(url, "ok")
    found = server_at(url, verbs.handle("probe", {"workspace": str(workspace), "urls": [url + "/"]})["vllm"])
    assert (found["pid"], found["health"], found["models"]) == (pid, "ok", ["target"])
    assert (found["running"], found["waiting"]) == (4.0, 2.0)


def test_a_server_that_is_not_well_is_down_with_its_own_words(stand_in: Any) -> None:
    url, _ = stand_in("STATUS['/health'] = 503")
    wait_for(lambda: "503" in told(url, "down", urls=(url,))["text"])


def test_a_server_behind_an_api_key_is_well_and_says_what_it_wants(stand_in: Any) -> None:
    url, _ = stand_in("STATUS['/v1/models'] = 401")
    found = told(url, "ok")
    assert "API key" in found["text"] and found["running"] == 4.0


def test_a_run_s_own_note_tells_whose_server_it_is(workspace: Path, stand_in: Any) -> None:
    url, pid = stand_in()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"))["run_dir"])
    (run_dir / "servers").mkdir()
    rundir.write_json(run_dir / "servers/plain.json", {"url": url.replace("127.0.0.1", "localhost"), "pid": pid, "kind": "plain"})
    rundir.write_json(run_dir / "servers/gone.json", {"url": "http://127.0.0.1:1", "pid": 2**22 - 1})
    servers = verbs.handle("probe", {"workspace": str(workspace)})["vllm"]
    assert [(s["run_id"], s["pid"], s["health"]) for s in servers if s["run_id"] == "r"] == [("r", pid, "ok")]


def test_silent_and_absent_servers_cost_one_deadline_together() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        urls = [f"http://127.0.0.1:{listener.getsockname()[1]}/{i}" for i in range(1)]
        urls += [f"http://127.0.0.1:{free_port()}", "http://no-such-host.invalid:8000", "ftp://x", "http://[::1", "nonsense"]
        found = {server["url"]: server for server in vllm.servers([], urls)}
    assert {found[url]["health"] for url in urls} == {"down"}
    assert all(found[url]["text"] for url in urls)


@pytest.mark.parametrize(
    ("command", "url"),
    [
        ("python -m vllm.entrypoints.openai.api_server --model x", "http://127.0.0.1:8000"),
        ("/usr/bin/python3 /venv/bin/vllm serve x --port=9001 --host 0.0.0.0", "http://127.0.0.1:9001"),
        ("vllm serve x --host ::1 --port 9", "http://[::1]:9"),
        ("vllm serve x --host 10.0.0.5", "http://10.0.0.5:8000"),
        ("vllm serve x --port 0", None),
        ("vllm serve x --uds /tmp/s", None),
        ("vllm bench x", None),
        ("grep vllm", None),
        ("VLLM::EngineCore", None),
        ("", None),
    ],
)
def test_a_command_line_tells_where_a_server_listens(command: str, url: str | None) -> None:
    assert vllm.serving_url(command.split()) == url


def test_a_question_that_hangs_is_left_behind() -> None:
    import threading

    never = threading.Event()
    answers = host.in_parallel([lambda: {"a": 1}, lambda: {"b": never.wait()}], 1.0)
    never.set()
    assert answers == [{"a": 1}, None]


def test_a_loopback_address_is_fetched_by_the_verb_http(stand_in: Any) -> None:
    url, _ = stand_in()
    answer = verbs.handle("http", {"url": f"{url}/v1/models"})
    assert answer["status"] == 200 and "target" in answer["text"]
    assert verbs.handle("http", {"url": f"{url}/none"})["status"] == 404
