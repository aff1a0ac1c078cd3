"""Section "gpu": the cards as NVML tells of them, and who holds their memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict

from eagle3.runner import detach, gpu, identity, proctable, state
from eagle3.runner.facts import host


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """The report of ``runner.gpu`` with details, each process told whose it is. ``devices`` says whether the kernel shows
    NVIDIA devices at all, ``smi`` where nvidia-smi is."""
    deadline_s = gpu.DEADLINE_S * float(wants.get("patience") or 1.0)
    report = gpu.report(deadline_s)
    details = _details(deadline_s) if report["source"] == "nvml" and report["status"] == "ok" else {}
    cards = details.pop("cards", None) or {}
    for card in report["gpus"]:
        card.update(cards.get(str(card["index"]), {}))
    holders: Dict[int, Dict[str, Any]] = {}
    for card in report["gpus"]:
        for process in card.get("processes") or []:
            pid = process["pid"]
            holders.setdefault(pid, holder(pid))
            process.update(holders[pid])
    return {
        **report,
        "cuda_driver": details.get("cuda_driver"),
        "links": details.get("links") or [],
        "devices": gpu.has_devices(),
        "smi": shutil.which("nvidia-smi") or "",
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _details(deadline_s: float) -> Dict[str, Any]:
    try:
        done = gpu.run_child(detach.own_command("nvml-details", site=True), deadline_s)
        found = json.loads(done.stdout.decode("utf-8", "replace"))
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return {}  # what it would have told stays unknown
    return found if isinstance(found, dict) else {}


def holder(pid: int) -> Dict[str, Any]:
    """Whose process ``pid`` is. ``seen``: it is in this container's process table (NVML may tell pids of the host);
    ``run_id`` is the run whose marker it bears, ``run_state`` that run's state now; ``ours`` the same user as we."""
    found = identity.stat(pid)
    unknown: Dict[str, Any] = {"seen": False, "name": "", "user": "", "ours": False, "run_id": "", "run_state": "", "run_dir": ""}
    if found is None:
        return unknown
    known = {**unknown, "seen": True, "name": proctable.name(pid), "user": host.owner(pid), "ours": proctable.is_ours(pid)}
    known["start_ticks"] = found.start_ticks
    environment = proctable.environment(pid) if known["ours"] else {}
    run_dir = environment.get("EAGLE3_RUN_DIR", "")
    if run_dir:
        known.update(run_id=environment.get("EAGLE3_RUN_ID", ""), run_dir=run_dir, run_state=_state(run_dir))
        known["owned"] = known["run_state"] in state.LIVE
    return known


def _state(run_dir: str) -> str:
    folder = Path(run_dir)
    if not (folder / "launch.json").is_file():
        return "gone"
    try:
        return str(state.summary(folder, time.time())["state"])
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return "unknown"  # files of another hand or version: not known to be alive
