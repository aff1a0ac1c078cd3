"""The part of a vLLM server's command line and environment that follows from the spec alone. Pure."""

from __future__ import annotations

from typing import Any

from eagle3.core.spec import RunSpec

NO_MATTER = frozenset({
    "port", "start_timeout_s", "silent_timeout_s", "restarts", "backoff_s", "latency_factor", "extract_url",
})  # fmt: skip
"""Fields of ``server`` that decide how a server is looked after, not what it says or how fast."""


def server_arguments(spec: RunSpec, *, extraction: bool = False) -> list[str]:
    """Arguments of every server of a run: what the machine, the target and the spec ask for, later wins in vLLM.

    An ``extraction`` server keeps the hidden states in its KV cache, so that one is never rounded.
    """
    spread = spec.server.tensor_parallel
    rounded = spec.server.kv_cache_dtype != "auto" and not extraction
    return [
        *(["--tensor-parallel-size", str(spread)] if spread > 1 else []),
        *(["--kv-cache-dtype", spec.server.kv_cache_dtype] if rounded else []),
        *(["--trust-remote-code"] if spec.target.trust_remote_code else []),
        *spec.target.server_args,
        *spec.server.args,
    ]


def speculative_method(spec: RunSpec) -> dict[str, object]:
    """How vLLM is told the kind of the draft; it takes P-EAGLE for an EAGLE-3 draft that proposes all tokens at once."""
    if spec.train.kind == "peagle":
        return {"method": "eagle3", "parallel_drafting": True}
    return {"method": spec.train.kind}


def device_environment(spec: RunSpec, stage: str) -> dict[str, str]:
    """Environment of the processes of a stage that compute on GPUs: which ones, and how these talk to each other.

    Empty on a machine without GPUs. ``CUDA_DEVICE_ORDER`` makes indices mean what nvidia-smi shows.
    """
    gpus = spec.devices.of(stage)
    if not gpus:
        return {}
    visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)}
    return spec.hardware.env | visible


def measured_part(spec: RunSpec) -> dict[str, Any]:
    """What of ``server`` the measured speeds depend on. A field that older runs lack is left out while it changes nothing."""
    found = spec.server.model_dump(exclude=set(NO_MATTER))
    if not found["url"]:
        del found["url"]
    return found
