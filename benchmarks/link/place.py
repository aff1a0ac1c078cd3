"""Where the link is measured: a real sshd with eight stand-in GPUs, a vLLM's endpoints, and a run to watch."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from eagle3.core.presets import resolve
from remote.container import Container, Settings
from tests.support.sshd import Sshd

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Of a plain container. A version manager's stand-in for python3 alone takes a tenth of a second."""
WORKER = Path(__file__).with_name("worker.py")
RUN_ID = "watched"


class Place:
    """Use as an async context manager. ``home`` is a home of the operator's, with an ssh_config for every port."""

    async def __aenter__(self) -> Place:
        self._folder = Path(tempfile.mkdtemp(prefix="eagle3-link-"))
        self.driver = self._fake_driver()
        self.sshd = Sshd(self._folder / "sshd", path=PATH, environment={"LD_LIBRARY_PATH": str(self.driver)}).start()
        self.home = self._folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        self.sshd.write_client_config(self.home / ".ssh" / "config", "Host *\n  UserKnownHostsFile ~/.ssh/known_hosts\n")
        self._vllm = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoints)
        threading.Thread(target=self._vllm.serve_forever, daemon=True).start()
        self._launched: list[str] = []
        self.vllm_url = f"http://127.0.0.1:{self._vllm.server_address[1]}"
        self.run_dir = await self.launch(RUN_ID)  # the first contact is not what is measured: it uploads
        (self.run_dir / "servers").mkdir(exist_ok=True)
        note = {"url": self.vllm_url, "pid": None}
        (self.run_dir / "servers" / "train.json").write_text(json.dumps(note))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for run_id in list(self._launched):
            await self.stop(run_id)
        self._vllm.shutdown()
        self.sshd.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def launch(self, run_id: str) -> Path:
        """Start a run of the stand-in worker; returns its directory."""
        spec = resolve("smoke", "smollm2-135m", "cpu", {"worker_python": str(WORKER)})
        async with self.container(self.sshd.port) as container:
            answer = await container.launch(spec, run_id, actor="benchmarks")
        self._launched.append(run_id)
        return Path(answer["run_dir"])

    async def stop(self, run_id: str) -> None:
        """End one of its runs."""
        if run_id in self._launched:
            self._launched.remove(run_id)
            async with self.container(self.sshd.port) as container:
                await container.stop(run_id, actor="benchmarks", grace_s=1.0)

    def trust(self, port: int) -> None:
        """Write the server's key down for another port that leads to it."""
        with (self.home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{port} {self.sshd.public_key()}\n")

    def container(self, port: int, *, probe_first: bool = False) -> Container:
        """A console's container, through ``port``."""
        self.trust(port)
        config = self.home / ".ssh" / "config"
        known = self.home / ".ssh" / "known_hosts"
        settings = Settings(state_dir=self._folder / "state", ssh_config=config, known_hosts=known)
        url = self.sshd.url.rpartition(":")[0]
        return Container(f"{url}:{port}", settings=settings, probe_first=probe_first)

    def _fake_driver(self) -> Path:
        folder = self._folder / "driver"
        folder.mkdir()
        source = Path(__file__).with_name("fake_nvml.c")
        command = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
        subprocess.run(command, check=True)
        return folder


class _Endpoints(BaseHTTPRequestHandler):
    """What a vLLM server answers while it works."""

    def do_GET(self) -> None:
        body = ""
        if self.path == "/v1/models":
            body = '{"data":[{"id":"target"}]}'
        if self.path == "/metrics":
            running, waiting = random.randrange(8), random.randrange(3)
            body = f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:num_requests_waiting{{engine="0"}} {waiting}.0\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing: the table is the output."""
