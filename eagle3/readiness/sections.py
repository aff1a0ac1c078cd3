"""The sections of the deep facts but for the canary: each a function of what is wanted and a scratch folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from eagle3.readiness import asking, devices
from eagle3.runner import host
from eagle3.runner.facts.places import expand

WORKER_MODULES = (
    "torch", "safetensors.torch", "transformers", "transformers.modeling_utils", "speculators.models.eagle3.core",
    "speculators.train.trainer",
    "speculators.train.vocab_mapping", "speculators.data_generation.offline", "pydantic", "httpx", "psutil",
    "prometheus_client.parser",
)  # fmt: skip
"""What the stages import, submodules too: a wheel that lacks one is found now and not an hour into the run."""
SERVER_MODULES = (
    "torch", "transformers", "transformers.modeling_utils", "vllm", "vllm.entrypoints.openai.api_server",
    "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector",
)  # fmt: skip

IMPORT_LIMIT_S = 120.0
KERNEL_LIMIT_S = 120.0
START_LIMIT_S = 120.0
"""Seconds that all ranks together may take to import torch; the limit of the all-reduce counts from then."""
ALLREDUCE_LIMIT_S = 30.0
DISK_LIMIT_S = 60.0
MODEL_LIMIT_S = 180.0
WRITE_BYTES, WRITE_S, FSYNCS = 64 << 20, 3.0, 20

Facts = Dict[str, Any]


def imports(wants: Facts, scratch: Path, side: str, *, limit_s: float = IMPORT_LIMIT_S) -> Facts:
    """Each module imported, in one process as long as all goes well: a process of its own each would pay for torch each
    time. Behind one that fails, hangs or ends its process a new process goes on, so that it hides none of the others."""
    python = python_of(wants, side)
    left = _modules(wants, side)
    told: List[Facts] = []
    while left:
        outcome = asking.script(python, "imports", {"modules": left}, limit_s=limit_s, cwd=scratch, renewed=True)
        told += [{"timed_out": False, **line} for line in outcome.lines]
        left = left[len(outcome.lines) :]
        if left and (not outcome.lines or outcome.lines[-1]["ok"]):
            failed = {"name": left.pop(0), "ok": False, "version": "", "error": outcome.said or "its process ended", "where": ""}
            told.append({**failed, "seconds": None, "timed_out": outcome.timed_out})
    return {"python": python, "packages": told}


def kernels(wants: Facts, scratch: Path) -> Facts:
    """A matrix product and an attention on every device that nobody holds."""
    held = devices.held(wants)
    told: List[Facts] = []
    for device in devices.cards(wants):
        owner = "" if device == "cpu" else held.get(device) or held.get("cuda", "")
        if owner:
            told.append({"device": device, "skipped": owner})
            continue
        outcome = asking.script(python_of(wants, "worker"), "kernels", {"device": device}, limit_s=KERNEL_LIMIT_S, cwd=scratch)
        answer = outcome.answer or {"error": outcome.said, "timed_out": outcome.timed_out}
        told.append({"device": device, "seconds": outcome.seconds, **answer})
    return {"devices": told}


def allreduce(wants: Facts, scratch: Path, *, limit_s: float = ALLREDUCE_LIMIT_S, start_s: float = START_LIMIT_S) -> Facts:
    """Every rank count to be used, for a hang may show at two ranks and not at four. Only free devices take part, in the
    environment that the run's own processes have (``expect.gpu_env``: NCCL's settings, without which some machines hang)."""
    expect = wants.get("expect") or {}
    env = {str(name): str(value) for name, value in (expect.get("gpu_env") or {}).items()}
    kind, held = devices.device_kind(wants), devices.held(wants)
    counts = [int(n) for n in expect.get("rank_counts") or (2,)]
    if kind == "cpu":
        most, free = max(2, len(os.sched_getaffinity(0))), []
        backend = "gloo"
    else:
        free = [device for device in devices.cards(wants) if not (held.get(device) or held.get("cuda"))]
        most, backend = len(free), "nccl"
    told: List[Facts] = []
    for ranks in sorted(set(counts)):
        if ranks > most:
            why = f"{most} {'processor cores' if kind == 'cpu' else 'free GPUs'} are here"
            told.append({"ranks": ranks, "skipped": why, "held": {} if kind == "cpu" else held})
            continue
        folder = scratch / f"allreduce-{ranks}"
        folder.mkdir()
        asked = {
            "ranks": ranks,
            "backend": backend,
            "devices": free[:ranks],
            "start_s": start_s,
            "limit_s": limit_s,
            "folder": str(folder),
        }
        most_s = start_s + limit_s + 20
        outcome = asking.script(python_of(wants, "worker"), "allreduce", asked, limit_s=most_s, cwd=scratch, env=env)
        answer = outcome.answer or {"ok": False, "error": outcome.said, "joined": [], "reduced": [], "hanging": []}
        told.append({"ranks": ranks, "backend": backend, "start_s": start_s, "limit_s": limit_s, **answer})
    return {"counts": told}


def disk(wants: Facts, scratch: Path) -> Facts:
    """Write speed, fsync latency and locks of each file system that the run will write, one folder of each."""
    told: List[Facts] = []
    seen: Dict[int, str] = {}
    paths = list(dict.fromkeys([wants["workspace"], *(wants.get("paths") or ())]))
    answers = host.in_parallel([lambda path=path: _place(path) for path in paths], 5.0)  # type: ignore[misc]
    for path, answer in zip(paths, answers):
        if answer is None or answer.get("error"):
            told.append({"path": path, "error": answer["error"] if answer else "the file system did not answer within 5 s"})
            continue
        if answer["device"] in seen:
            told.append({"path": path, "same_as": seen[answer["device"]]})
            continue
        seen[answer["device"]] = path
        told.append({"path": path, **_measured(Path(answer["folder"]), answer["free_bytes"], scratch)})
    return {"paths": told}


def model(wants: Facts, scratch: Path) -> Facts:
    """What transformers makes of the model's folder."""
    named = str(wants.get("model") or "")
    folder = str(expand(named)) if named else ""
    if not Path(folder or "/nowhere").is_dir():
        return {"folder": folder, "skipped": f"{folder or 'the model, which was not named,'} is no folder on this machine"}
    expect = wants.get("expect") or {}
    asked = {"folder": folder, "trust_remote_code": bool(expect.get("trust_remote_code"))}
    outcome = asking.script(python_of(wants, "worker"), "model", asked, limit_s=MODEL_LIMIT_S, cwd=scratch)
    return {"folder": folder, "expect": expect, **(outcome.answer or {"error": outcome.said})}


def limit_s(wants: Facts, section: str) -> float:
    """The most seconds that a section may take: what is asked, each at its limit."""
    if section.startswith("deep.imports."):
        return IMPORT_LIMIT_S * len(_modules(wants, section.rpartition(".")[2]))
    counts = len((wants.get("expect") or {}).get("rank_counts") or (2,))
    return {
        "deep.disk": DISK_LIMIT_S * (1 + len(wants.get("paths") or ())),
        "deep.model": MODEL_LIMIT_S,
        "deep.kernels": KERNEL_LIMIT_S * max(1, int(wants.get("gpus") or 1)),
        "deep.allreduce": (START_LIMIT_S + ALLREDUCE_LIMIT_S + 20.0) * counts,
    }[section]


def _modules(wants: Facts, side: str) -> List[str]:
    return list((wants.get("modules") or {}).get(side) or (WORKER_MODULES if side == "worker" else SERVER_MODULES))


def python_of(wants: Facts, side: str) -> str:
    pythons = wants.get("pythons") or {}
    found = pythons.get(side) or pythons.get("worker") or "python3"
    return str(expand(str(found)))  # a bare name is looked up on the PATH


def _place(path: str) -> Facts:
    """The existing folder where ``path`` will lie, its device and its free bytes."""
    place = expand(path)
    try:
        while not place.is_dir() and place != place.parent:
            place = place.parent
        status = os.statvfs(place)
        return {"folder": str(place), "device": place.stat().st_dev, "free_bytes": status.f_bavail * status.f_frsize}
    except OSError as error:
        return {"error": f"it cannot be asked: {error.strerror or error}"}


def _measured(folder: Path, free_bytes: int, scratch: Path) -> Facts:
    size = min(WRITE_BYTES, free_bytes // 4)
    name = f".eagle3-probe-{os.getpid()}-{time.monotonic_ns():x}"
    asked = {"folder": str(folder), "name": name, "bytes": size, "seconds": WRITE_S, "fsyncs": FSYNCS}
    outcome = asking.script(sys.executable, "disk", asked, limit_s=DISK_LIMIT_S, cwd=scratch)
    left = ""
    if outcome.timed_out:
        left = str(folder / name)  # to remove it could hang as its writer did
    elif outcome.answer is None:
        left = _removed(folder / name)
    return {"folder": str(folder), "left": left, **(outcome.answer or {"error": outcome.said, "timed_out": outcome.timed_out})}


def _removed(path: Path) -> str:
    """Remove what a probe that died has left; the path where that fails."""
    try:
        path.unlink()
    except FileNotFoundError:
        return ""
    except OSError:
        return str(path)
    return ""


ORDER: Tuple[str, ...] = (
    "deep.imports.worker", "deep.imports.server", "deep.disk", "deep.model",
    "deep.kernels", "deep.allreduce", "deep.generate", "deep.canary",
)  # fmt: skip
"""The sections in the order in which they are asked: what explains the most, the soonest, first."""
