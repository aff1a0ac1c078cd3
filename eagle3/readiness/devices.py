"""Who holds the devices now: a deep probe leaves alone what a run or a server works on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List

from eagle3.runner import gpu, proctable, rundir, state, vllm

CROWDED_BYTES = 1 << 30
"""A GPU with so much memory in use is somebody's, also where the processes cannot be seen from this container."""


def held(wants: Dict[str, Any]) -> Dict[str, str]:
    """Device ("cpu", "cuda:0" …) → who holds it, in words. Only devices that are held are listed.

    On a machine without a GPU the processors count as one device: a second model would halve whatever runs.
    """
    owners = _owners(str(wants["workspace"]))
    if device_kind(wants) == "cpu":
        return {"cpu": "; ".join(owners)} if owners else {}
    found: Dict[str, str] = {}
    report = gpu.report()
    if report["status"] != "ok":
        return {"cuda": f"the GPUs cannot be asked ({report['text']})"}
    for card in report["gpus"]:
        pids = [process["pid"] for process in card.get("processes") or ()]
        used = card.get("memory_used_bytes") or 0
        if pids:
            names = ", ".join(f"{pid} {proctable.name(pid)[:60]}" for pid in pids[:4])
            found[f"cuda:{card['index']}"] = f"process {names}"
        elif used > CROWDED_BYTES:
            found[f"cuda:{card['index']}"] = f"{used / 2**30:.1f} GiB of it are in use by processes that cannot be seen from here"
    return found


def cards(wants: Dict[str, Any]) -> List[str]:
    """The devices to probe: "cpu", or every GPU that NVML or nvidia-smi lists; where none is listed, those that are wanted."""
    if device_kind(wants) == "cpu":
        return ["cpu"]
    report = gpu.report()
    count = len(report["gpus"]) or int(wants.get("gpus") or 0)
    return [f"cuda:{index}" for index in range(count)]


def device_kind(wants: Dict[str, Any]) -> str:
    """ "cpu" or "cuda", as the run to come asks for."""
    return str((wants.get("expect") or {}).get("device") or "cpu")


def _owners(workspace: str) -> List[str]:
    """Live runs of the workspace, and vLLM servers of this machine, as words."""
    now = time.time()
    owners = []
    run_dirs: List[Path] = []
    for run_dir in rundir.runs(workspace):
        if state.summary(run_dir, now)["state"] in state.LIVE:
            run_dirs.append(run_dir)
            owners.append(f"the run {run_dir.name} works here")
    for server in vllm.servers(run_dirs, []):
        if server["run_id"] not in {path.name for path in run_dirs}:
            owners.append(f"a vLLM server answers at {server['url']}" + (f" (pid {server['pid']})" if server["pid"] else ""))
    return owners
