"""Everything that an overview shows, in one answer: the verb ``probe``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List

from eagle3.runner import gpu, host, proctable, rates, rundir, state, vllm, watchers
from eagle3.runner.errors import VerbError, from_os_error


def list_runs(workspace: str) -> List[Dict[str, Any]]:
    """The summaries of the workspace's runs, the newest first."""
    now = time.time()
    summaries = [_described(run_dir, now) for run_dir in rundir.runs(workspace)]
    return sorted(summaries, key=lambda s: -(s["created_at"] or 0.0))


def _described(run_dir: Path, now: float) -> Dict[str, Any]:
    try:
        return state.summary(run_dir, now)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        # One run that a foreign hand or a newer runner wrote must not hide all the others.
        text = f"its files cannot be understood: {type(error).__name__}: {error}"
        return {
            "run_id": run_dir.name,
            "run_dir": str(run_dir),
            "state": "unknown",
            "state_text": text,
            "created_at": None,
            "now": now,
        }


def cards() -> Dict[str, Any]:
    """The GPUs, each process on them with its short ``name`` and the run (``run_id``) whose marker it bears. A process that is
    not in this container's table (NVML may tell pids of the host) stays a number."""
    report = gpu.report()
    known: Dict[int, Dict[str, str]] = {}
    for card in report["gpus"]:
        for process in card.get("processes") or []:
            pid = process["pid"]
            if pid not in known:
                run_id = proctable.environment(pid).get("EAGLE3_RUN_ID", "") if proctable.is_ours(pid) else ""
                known[pid] = {key: value for key, value in (("name", proctable.short_name(pid)), ("run_id", run_id)) if value}
            process.update(known[pid])
    return report


def probe(workspace: str, paths: Iterable[str] = (), urls: Iterable[str] = ()) -> Dict[str, Any]:
    """The shape of ``core.records.Probe``. Its parts are asked at the same time; none can hold up the others for long."""
    place = str(rundir.workspace_path(workspace))
    shared = [path for path in ("/tmp", "/dev/shm") if os.path.isdir(path)]  # noqa: PTH112 - a plain question

    def runs_and_servers() -> Dict[str, Any]:
        try:
            runs = list_runs(workspace)
        except OSError as error:
            return {"error": error}
        live = vllm.live([Path(s["run_dir"]) for s in runs], runs)
        return {"runs": runs, "servers": vllm.servers(live, urls)}

    # The GPUs take longest, so they are asked first.
    found_cards, disks, found = host.in_parallel(
        [cards, lambda: {"found": host.disks([place, *paths, *shared])}, runs_and_servers], 2 * gpu.DEADLINE_S + 1
    )
    if found is None:
        raise VerbError("busy", f"{place} did not answer in time.", "Its disk may hang; ask again, or look there by hand.")
    if isinstance(found.get("error"), PermissionError):
        raise VerbError("permission", f"{place} may not be read by this user.", "Choose another workspace.")
    if "error" in found:
        raise from_os_error(found["error"], f"looking for runs in {place}")
    return {
        "now": time.time(),
        "host": host.facts(),
        "gpu": found_cards
        or {"status": "unknown", "text": "The GPUs did not answer in time.", "source": "", "driver": "", "gpus": []},
        "disks": (disks or {"found": []})["found"],
        "vllm": found["servers"],
        "runs": found["runs"],
        "rates": rates.measured(workspace),
        "watchers": watchers.watchers(workspace, time.time()),
    }
