#!/usr/bin/env python3
"""The gate after an install: what the product uses is imported, each in a process of its own.

`pip list` and `pip check` cannot tell: an environment can be complete by name and still fail at the first
import. Exit code 1 names every module that failed, with the last line of its error.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

KERNELS = "import torch, vllm.platforms as p; p.current_platform.import_kernels(); torch.ops._C.silu_and_mul"
"""vLLM picks the build of its compiled part that suits the CPU, and only logs it when that does not load. Importing
a build by name instead may end the process: an illegal instruction."""

CHECKS = {
    "torch": "import torch",
    "transformers": "import transformers.models.llama.modeling_llama",
    "speculators": "import speculators.train.trainer",
    "vLLM's compiled part": KERNELS,
    "vLLM's server": "import vllm.entrypoints.openai.api_server",
    "textual": "import textual.app",
    "asyncssh": "import asyncssh",
    "plotext": "import textual_plotext",
    "nvidia-ml-py": "import pynvml",
    "this project": "import eagle3.core.spec",
}
"""What must work, and a line of Python that tells. The names reach deep: those are what a wrong package breaks."""

NOT_LOADED = ("Failed to import", "cannot open shared object")
"""What a line says that names the cause, wherever it stands: what follows from it fails later and says less."""

CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
"""Built for CUDA on the common index: beside a CPU build of torch they break `import transformers`."""


def main() -> int:
    strangers = [name for name in CUDA_ONLY if importlib.util.find_spec(name)]
    if strangers and run("import torch, sys; sys.exit(torch.version.cuda is not None)") is None:
        print(f"Removing {', '.join(strangers)}: beside a CPU build of torch they break transformers.")
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-q", "-y", *strangers], check=True)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        errors = dict(zip(CHECKS, pool.map(run, CHECKS.values()), strict=True))
    failed = {what: error for what, error in errors.items() if error is not None}
    for what, error in failed.items():
        print(f"{what}: `{CHECKS[what]}` fails: {error}", file=sys.stderr)
    if failed:
        print("The install is not usable as it is; `make clean` and the same command again start it afresh.", file=sys.stderr)
    return 1 if failed else 0


def run(code: str) -> str | None:
    """Run a line of Python in a fresh process; None when it went well, else what it ended with: the line that names
    a library that could not be loaded, or the last one."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}"
    lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if any(sign in line for sign in NOT_LOADED)), lines[-1])


if __name__ == "__main__":
    sys.exit(main())
