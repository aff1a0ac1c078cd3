"""transformers as a server of the run's own, for targets that one device holds and where no vLLM is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3.engines.cpu import usable_cores
from eagle3.engines.own_server import OwnServer


class TransformersServer(OwnServer):
    """transformers as a server of the run's own; see ``OwnServer``."""

    what = "transformers"

    def __init__(self, *about: Any, states: Path | None = None, **more: Any) -> None:
        super().__init__(*about, **more, states=states, pythonpath=Path(__file__).parents[2])
        self._states = states

    def python(self) -> str:
        return self.ctx.worker_python

    def arguments(self, port: int) -> list[str]:
        target = self.ctx.spec.target
        layers = ",".join(map(str, target.captured_layers))
        return [
            "-m", "eagle3.engines.transformers_program",
            "--model", str(self.ctx.model_dir),
            "--served-model-name", target.served_name,
            "--port", str(port),
            "--dtype", target.dtype,
            "--device", self.ctx.spec.device,
            "--max-model-len", str(target.max_model_len),
            *(["--trust-remote-code"] if target.trust_remote_code else []),
            *(["--states", str(self._states), "--layers", layers] if self._states is not None else []),
        ]  # fmt: skip

    def own_environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(usable_cores())} if self.ctx.spec.device == "cpu" else {}
