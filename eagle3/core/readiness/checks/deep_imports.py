"""Do the packages really import? ``pip list`` says what is installed, only an import says what works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.report import Action

_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec", "libc10_cuda", "libcudart", "libtorch_cuda")
"""What an import names when a CUDA build of these stands beside another build of torch."""

_WHY = "What is installed may still not import: the wrong build beside torch, a submodule missing, a library that is not there."
_CATCHES = (
    "a CUDA torchvision beside a CPU torch, so that transformers does not import (met here); vllm#13608 undefined symbol; "
    "SpecForge#292 a submodule missing; an import that hangs"
)
_PROOF = (
    "real here: a torchvision whose registration of torchvision::nms fails as a CUDA build's does breaks `import transformers`, "
    "then is taken away; a module that hangs; an interpreter that is not there"
)


@check(
    "python.imports_worker", title="The worker's packages import", why=_WHY, catches=_CATCHES, proof=_PROOF,
    needs=("deep.imports.worker",), deep=True,
)  # fmt: skip
def worker_imports(facts: Facts, context: Context) -> Iterable[Finding]:
    """One finding for all that import, one for each that does not."""
    return _imports(facts["deep.imports.worker"], "worker")


@check(
    "python.imports_server", title="The server's packages import", why=_WHY, catches=_CATCHES, proof=_PROOF,
    needs=("deep.imports.server",), deep=True,
)  # fmt: skip
def server_imports(facts: Facts, context: Context) -> Iterable[Finding]:
    """As for the worker, in the interpreter that runs vLLM."""
    return _imports(facts["deep.imports.server"], "server")


def _imports(section: Mapping[str, Any], side: str) -> Iterator[Finding]:
    python, packages = section["python"], section["packages"]
    failed = [package for package in packages if not package["ok"]]
    if failed and all("cannot be started" in package["error"] for package in packages):
        remedy = f"Name an interpreter that starts: {side}_python in the spec, or build an environment for this run."
        yield Finding("fail", f"{python}: {failed[0]['error']}", remedy, action=_build(side))
        return
    for package in failed:
        where = f" (at {package['where']})" if package.get("where") else ""
        yield Finding(
            "fail", f"import {package['name']}: {package['error']}", _remedy(package, python, side), which=package["name"],
            detail=f"{python}{where}", action=None if _is_cuda_build(package) else _build(side),
        )  # fmt: skip
    if not failed:
        seconds = sum(package.get("seconds") or 0.0 for package in packages)
        versions = ", ".join(f"{p['name']} {p['version']}" for p in packages if p.get("version") and "." not in p["name"])
        yield Finding("ok", f"{len(packages)} modules import in {seconds:.0f} s ({versions})", detail=str(python))


def _is_cuda_build(package: Mapping[str, Any]) -> bool:
    return any(word in package["error"] for word in _CUDA_BUILDS)


def _remedy(package: Mapping[str, Any], python: str, side: str) -> str:
    if package.get("timed_out"):
        return f"See where it hangs: {python} -X importtime -c 'import {package['name']}' (a network disk, a driver)."
    if _is_cuda_build(package):
        return f"{python} -m pip uninstall -y torchvision torchaudio torchcodec (nothing here needs them)"
    return f"Build an environment of the run's own beside this one, or set {side}_python to one that has it whole."


def _build(side: str) -> Action | None:
    """The offer to build the worker's environment; the server's vLLM is not ours to choose."""
    if side != "worker":
        return None
    return Action(
        verb="build_env", args={"what": "worker"}, label="build the run's own environment",
        confirm="Build a new environment in the workspace, beside those that are in use? It takes minutes and about 3 GB.",
    )  # fmt: skip
