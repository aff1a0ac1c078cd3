"""What a readiness sweep asks the container for: a spec in the runner's plain words. Pure; the answer's shape is JSON.

Paths may begin with ``~`` or hold ``{cache}``; the container expands them, since only it knows its home and cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3.core.readiness.needs import needs
from eagle3.core.spec import RunSpec

SHARED_PATHS = ("{tmp}", "/dev/shm", "~/.cache", "{hf_cache}")
"""Where a run writes besides its workspace: sockets and compiled kernels, shared memory, vLLM's and the hub's caches."""

RANK_COUNTS = (2, 4, 8)


def wants(spec: RunSpec | None, workspace: str, *, urls: Iterable[str] = ()) -> dict[str, Any]:
    """The ``wants`` of verb ``facts`` and of ``eagle3 probe``. Without a spec only the machine is looked at.

    ``urls`` are vLLM servers that the operator named: of those it is asked whether they serve the model.
    """
    asked: dict[str, Any] = {
        "workspace": workspace, "paths": [workspace, *SHARED_PATHS], "pythons": {"worker": "", "server": ""}, "model": "",
        "expect": {}, "needs": [], "port": 0, "speculative": None, "gpus": 0, "urls": list(urls),
    }  # fmt: skip
    if spec is None:
        return asked
    target, parallel = spec.target, tensor_parallel_of(spec)
    return asked | {
        "pythons": {"worker": spec.worker_python, "server": spec.server_python or spec.worker_python},
        "model": target.model,
        "expect": {
            "hidden_size": target.hidden_size, "num_hidden_layers": target.num_hidden_layers,
            "captured_layers": target.captured_layers, "served_name": target.served_name,
            "max_model_len": target.max_model_len, "dtype": target.dtype, "trust_remote_code": target.trust_remote_code,
            "device": spec.device, "tensor_parallel": parallel, "rank_counts": [n for n in RANK_COUNTS if n <= parallel],
        },
        "needs": needs(spec, workspace),
        "port": spec.server.port,
        "speculative": {"method": "eagle3", "num_speculative_tokens": spec.evaluate.num_speculative_tokens},
        "gpus": gpus_of(spec),
    }  # fmt: skip


def with_pythons(asked: Mapping[str, Any], default: str) -> dict[str, Any]:
    """``asked`` with the interpreters that the spec leaves open filled in as a launch would: by ``default``."""
    worker = asked["pythons"].get("worker") or default
    return {**asked, "pythons": {"worker": worker, "server": asked["pythons"].get("server") or worker}}


def gpus_of(spec: RunSpec) -> int:
    """Cards that the run's servers use at once; 0 on a machine without."""
    return tensor_parallel_of(spec) if spec.device == "cuda" else 0


def tensor_parallel_of(spec: RunSpec) -> int:
    """Cards over which one vLLM server is spread, as its arguments say."""
    value = _argument(spec, "--tensor-parallel-size", "-tp")
    return int(value) if value.isdigit() and int(value) > 0 else 1


def utilization_of(spec: RunSpec) -> float:
    """The share of a card's memory that a server takes, as its arguments say; vLLM's own default is 0.9."""
    try:
        return float(_argument(spec, "--gpu-memory-utilization") or 0.9)
    except ValueError:
        return 0.9


def _argument(spec: RunSpec, *names: str) -> str:
    words = list(spec.server.args)
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in names:
            return value if equals else (words[place + 1] if place + 1 < len(words) else "")
    return ""
