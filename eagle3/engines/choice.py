"""Which server a stage works with: what the spec's ``engine``, ``server.url`` and ``server.extract_url`` say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3.core.spec import RunSpec
from eagle3.engines.given_server import GivenServer
from eagle3.engines.server import Server, ServerKind
from eagle3.engines.transformers_server import TransformersServer
from eagle3.engines.vllm_server import VllmServer
from eagle3.stages.context import StageContext

_CONNECTOR = Path(__file__).parent / "cpu_connector.py"


def engine_part(spec: RunSpec) -> dict[str, str]:
    """What of the engine the answers and the states depend on. Nothing for vLLM, so that what runs made before there was a
    choice stays whole."""
    return {} if spec.engine == "vllm" else {"engine": spec.engine}


def answering_server(ctx: StageContext, meanwhile: Callable[[], None] = lambda: None) -> Server:
    """The server that answers the prompts. ``meanwhile`` is called while one of the run's own loads, and may raise."""
    if ctx.spec.engine == "transformers":
        return TransformersServer(ctx, "plain", meanwhile=meanwhile)
    if ctx.spec.server.url:
        return GivenServer(ctx, "plain", ctx.spec.server.url, concurrency=ctx.spec.regenerate.concurrency)
    return VllmServer(ctx, "plain", meanwhile=meanwhile)


def extraction_server(ctx: StageContext, raw: Path) -> Server:
    """The server whose every request leaves a file of hidden states; one of the run's own leaves it in the folder ``raw``."""
    if ctx.spec.engine == "transformers":
        return TransformersServer(ctx, "extract", states=raw)
    if ctx.spec.server.extract_url:
        return GivenServer(ctx, "extract", ctx.spec.server.extract_url, concurrency=ctx.spec.extract.concurrency)
    folder = ctx.path("servers", "connector", _CONNECTOR.name).parent
    shutil.copyfile(_CONNECTOR, folder / _CONNECTOR.name)
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": ctx.spec.target.captured_layers}}
    speculative = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers}
    transfer = {
        "kv_connector": "CpuHiddenStatesConnector",
        "kv_connector_module_path": _CONNECTOR.stem,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(raw)},
    }
    args = [
        "--no-enable-prefix-caching",
        "--speculative_config", json.dumps(speculative),
        "--kv_transfer_config", json.dumps(transfer),
    ]  # fmt: skip
    return VllmServer(ctx, "extract", extra_args=args, pythonpath=folder, states=raw)


def measured_server(ctx: StageContext) -> Server:
    """A vLLM without a draft for the stage evaluate. Never transformers: it does not speculate, so its speed is no measure."""
    if ctx.spec.server.url:
        return GivenServer(ctx, "plain", ctx.spec.server.url, concurrency=ctx.spec.evaluate.concurrency, stage="evaluate")
    return VllmServer(ctx, "plain", stage="evaluate")


def speculating_server(ctx: StageContext, name: ServerKind, args: Sequence[str]) -> Server:
    """A vLLM that speculates as ``args`` say: always the run's own, for nobody else's loads this run's draft."""
    return VllmServer(ctx, name, extra_args=args, stage="evaluate")
