"""The checks, one module a group. Importing this package declares all of them."""

from eagle3.core.readiness.checks import (
    deep_canary,
    deep_disk,
    deep_generate,
    deep_imports,
    deep_kernels,
    deep_model,
    disk,
    gpu,
    host,
    model,
    python,
    vllm,
)

__all__ = [
    "deep_canary", "deep_disk", "deep_generate", "deep_imports", "deep_kernels", "deep_model",
    "disk", "gpu", "host", "model", "python", "vllm",
]  # fmt: skip
