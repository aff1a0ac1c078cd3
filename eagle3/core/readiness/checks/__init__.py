"""The checks, one module a group. Importing this package declares all of them."""

from eagle3.core.readiness.checks import disk, gpu, host, model, python, vllm

__all__ = ["disk", "gpu", "host", "model", "python", "vllm"]
