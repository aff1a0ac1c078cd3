"""What a readiness sweep asks the container for: a spec in the runner's plain words. Pure; the answer's shape is JSON.

Paths may begin with ``~`` or hold ``{cache}``; the container expands them, since only it knows its home and cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3.core.estimate import estimate
from eagle3.core.spec import STAGES, RunSpec

SHARED_PATHS = ("{tmp}", "/dev/shm", "~/.cache", "{hf_cache}")
"""Where a run writes besides its workspace: sockets and compiled kernels, shared memory, vLLM's and the hub's caches."""

RANK_COUNTS = (2, 4, 8)
CANARY_MORE_S = 180.0
"""Beside its server's start and the first answer: imports, sixteen short requests, the comparison."""


def wants(spec: RunSpec | None, workspace: str, *, urls: Iterable[str] = (), taken: Collection[str] = ()) -> dict[str, Any]:
    """The ``wants`` of verb ``facts`` and of ``eagle3 probe``. Without a spec only the machine is looked at.

    ``urls`` are vLLM servers that the operator named: of those it is asked whether they serve the model. ``taken`` are the
    stages that a fork takes over: no room is asked for them.
    """
    asked: dict[str, Any] = {
        "workspace": workspace, "paths": [workspace, *SHARED_PATHS], "pythons": {"worker": "", "server": ""}, "model": "",
        "expect": {}, "needs": [], "port": 0, "speculative": None, "gpus": 0, "urls": list(urls),
    }  # fmt: skip
    if spec is None:
        return asked
    target, parallel = spec.target, spec.server.tensor_parallel
    # One that generates is asked whether it serves the model; one in extraction mode must not be asked for an answer.
    named = [*asked["urls"], *([spec.server.url] if spec.server.url and spec.server.url not in asked["urls"] else [])]
    return asked | {
        "urls": named,
        "pythons": {"worker": spec.worker_python, "server": spec.server_python or spec.worker_python},
        "model": target.model,
        "expect": {
            "hidden_size": target.hidden_size, "num_hidden_layers": target.num_hidden_layers,
            "captured_layers": target.captured_layers, "served_name": target.served_name,
            "max_model_len": target.max_model_len, "dtype": target.dtype, "trust_remote_code": target.trust_remote_code,
            "device": spec.device, "tensor_parallel": parallel, "rank_counts": rank_counts(spec), "canary_s": canary_s(spec),
            "gpu_env": dict(spec.hardware.env),
        },
        "needs": needs(spec, workspace, taken),
        "port": spec.server.port,
        "speculative": {"method": "eagle3", "num_speculative_tokens": spec.evaluate.num_speculative_tokens},
        "gpus": gpus_of(spec),
    }  # fmt: skip


def with_pythons(asked: Mapping[str, Any], default: str) -> dict[str, Any]:
    """``asked`` with the interpreters that the spec leaves open filled in as a launch would: by ``default``."""
    worker = asked["pythons"].get("worker") or default
    return {**asked, "pythons": {"worker": worker, "server": asked["pythons"].get("server") or worker}}


def needs(spec: RunSpec, workspace: str, taken: Collection[str] = ()) -> list[dict[str, Any]]:
    """``[{"path","bytes","inodes","what","unless"}]``: what the run will write, as the estimate has it, under ``workspace``."""
    found = [vars(need) for need in estimate(spec, taken=taken).needs]
    return [{**need, "path": workspace} if need["path"] == spec.workspace else dict(need) for need in found]


def gpus_of(spec: RunSpec) -> int:
    """Cards that the run uses, counted up to the highest index that a stage names; 0 on a machine without."""
    named = [gpu for stage in STAGES for gpu in spec.devices.of(stage)]
    return max([spec.server.tensor_parallel, *(gpu + 1 for gpu in named)]) if spec.device == "cuda" else 0


def rank_counts(spec: RunSpec) -> list[int]:
    """Every number of ranks that a stage will use, and the smaller powers of two: some faults show at two ranks only."""
    used = {spec.server.tensor_parallel, len(spec.devices.train)}
    return sorted({n for n in (*used, *RANK_COUNTS) if 1 < n <= max(used)})


def canary_s(spec: RunSpec) -> float:
    """Seconds that the deep check's extraction may take: the start of its server, its first answer, and a bit."""
    return spec.server.start_timeout_s + spec.extract.request_timeout_s + CANARY_MORE_S


def utilization_of(spec: RunSpec) -> float:
    """The share of a card's memory that a server takes, as its arguments say; vLLM's own default is 0.9."""
    try:
        return float(_argument(spec, "--gpu-memory-utilization") or 0.9)
    except ValueError:
        return 0.9


def _argument(spec: RunSpec, *names: str) -> str:
    words = [*spec.target.server_args, *spec.server.args]
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in names:
            return value if equals else (words[place + 1] if place + 1 < len(words) else "")
    return ""
