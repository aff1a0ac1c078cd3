#!/usr/bin/env python3
"""The gate after an install: what the product uses is imported, each in a process of its own.

`pip list` and `pip check` cannot tell: an environment can be complete by name and still fail at the first
import. Exit code 1 names every module that failed, with the last line of its error.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MODULES = {
    "torch": "torch",
    "transformers": "transformers, with its models' import machinery",
    "speculators.train.trainer": "speculators",
    "vllm._C": "vLLM's compiled part",
    "vllm.entrypoints.openai.api_server": "vLLM's server",
    "textual": "textual",
    "asyncssh": "asyncssh",
    "plotext": "plotext",
    "pynvml": "nvidia-ml-py",
    "eagle3.core.spec": "this project",
}
"""Module to import, and what it stands for. The deep names are those that break when a package is wrong."""

CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
"""Built for CUDA on the common index: beside a CPU build of torch they break `import transformers`."""


def main() -> int:
    strangers = [name for name in CUDA_ONLY if importlib.util.find_spec(name)]
    if strangers and run("import torch, sys; sys.exit(torch.version.cuda is not None)") is None:
        print(f"Removing {', '.join(strangers)}: beside a CPU build of torch they break transformers.")
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-q", "-y", *strangers], check=True)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        errors = dict(zip(MODULES, pool.map(lambda module: run(f"import {module}"), MODULES), strict=True))
    failed = {module: error for module, error in errors.items() if error is not None}
    for module, error in failed.items():
        print(f"{MODULES[module]}: `import {module}` fails: {error}", file=sys.stderr)
    if failed:
        print("The install is not usable as it is; `make clean` and the same command again start it afresh.", file=sys.stderr)
    return 1 if failed else 0


def run(code: str) -> str | None:
    """Run a line of Python in a fresh process; the last line of its error, or None when it went well."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
