"""A vLLM server for a measurement: the arguments and the environment that our own runs use, started by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from benchmarks.pipeline.material import ROOT, offline
from eagle3.core.serving import server_arguments
from eagle3.core.spec import RunSpec
from eagle3.engines.cpu import cpu_environment
from eagle3.targets import model_dir

_CONNECTOR = ROOT / "eagle3" / "engines" / "cpu_connector.py"


class Server:
    """Use as a context manager; inside, ``url`` answers. ``start_s``: seconds until it did; ``raw``: where the states of one in
    extraction mode land. Raises RuntimeError."""

    def __init__(self, spec: RunSpec, folder: Path, kind: str, more: list[str] | None = None) -> None:
        self.spec, self.folder, self.kind = spec, folder, kind
        self.more = more or []
        self.log_path = folder / f"server-{kind}.log"
        self.raw = folder / "raw"
        self.model = spec.target.served_name
        self.url = ""
        self.start_s = 0.0

    def __enter__(self) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=self._environment(), cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        try:
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() - began > self.spec.server.start_timeout_s:
                    raise RuntimeError(f"the {self.kind} server does not come up; {self.log_path} ends:\n{self._tail()}")
                time.sleep(0.2)
        except BaseException:
            self._end()
            raise
        self.start_s = time.monotonic() - began
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def check_alive(self) -> None:
        """Raise RuntimeError where the server has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the {self.kind} server ended; {self.log_path} ends:\n{self._tail()}")

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)

    def _tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-1500:]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def _command(self, port: int) -> list[str]:
        target, path = self.spec.target, str(model_dir(self.spec.target.model))
        return [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", path,
            "--served-model-name", self.model, path, "--host", "127.0.0.1", "--port", str(port), "--dtype", target.dtype,
            "--max-model-len", str(target.max_model_len), "--uvicorn-log-level", "warning",
            *server_arguments(self.spec, extraction=self.kind == "extract"), *self.more,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        env = {**cpu_environment(sys.executable), **os.environ, **offline(), **self.spec.server.env}
        if self.kind == "extract":
            env["PYTHONPATH"] = str(self.folder)
        return env


def extraction(spec: RunSpec, folder: Path) -> Server:
    """A server in extraction mode, whose states land under ``folder/raw``."""
    shutil.copyfile(_CONNECTOR, folder / _CONNECTOR.name)
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": spec.target.captured_layers}}
    speculative = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers}
    server = Server(spec, folder, "extract")
    transfer = {
        "kv_connector": "CpuHiddenStatesConnector",
        "kv_connector_module_path": _CONNECTOR.stem,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(server.raw)},
    }
    more = ["--no-enable-prefix-caching", "--speculative_config", json.dumps(speculative)]
    server.more = [*more, "--kv_transfer_config", json.dumps(transfer)]
    return server
