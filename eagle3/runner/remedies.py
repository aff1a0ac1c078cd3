"""Remedies that act: first a preview with a token, then the act, which needs that token: the hash of what was shown.

Never another user's process, never one without the mark of a run or check of this workspace, never a path outside the
workspace or through a link, never an environment that something live uses.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from eagle3.runner import buildenv, gpu, identity, jobs, proctable, rundir, state, trees
from eagle3.runner.errors import VerbError
from eagle3.runner.rundir import PathLike

GRACE_S = 10.0
Plan = Dict[str, Any]


def remedy(workspace: PathLike, action: str, args: Dict[str, Any], *, preview: bool = True, token: str = "") -> Plan:
    """Preview ``action`` or, with the token of its preview, do it.

    Preview: ``{"action","preview": true,"token","items","refused": [{"what","why"}],"text"}``; nothing is changed. Act:
    ``{"action","preview": false,"done","left","text"}``, for build_env also ``check_id`` (read it with check_read).
    Actions: ``free_gpu {pids?}``, ``clean_leftovers {}``, ``delete {paths}``, ``build_env`` (see `buildenv.plan`).

    Raises VerbError: usage (an unknown action, a token that does not fit, nothing to do), and those of the action.
    """
    if action not in _ACTIONS:
        raise VerbError("usage", f"There is no remedy {action!r}.", f"Use one of {', '.join(_ACTIONS)}.")
    look, act = _ACTIONS[action]
    plan = look(workspace, args)
    plan["token"] = _token(workspace, action, plan)
    secret = plan.pop("secret", None)
    if preview:
        return {"action": action, "preview": True, **plan}
    if token != plan["token"]:
        text = "What would be done is not what the preview showed." if token else f"{action} needs the token of its preview."
        raise VerbError("usage", text, "Look at the preview again, then confirm.")
    if not plan["items"]:
        raise VerbError("usage", "There is nothing to do.", "; ".join(r["why"] for r in plan["refused"][:3]))
    return {"action": action, "preview": False, **act(workspace, plan, secret)}


def _token(workspace: PathLike, action: str, plan: Plan) -> str:
    shown = [str(rundir.workspace_path(workspace)), action, plan["items"], plan.get("secret")]
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:32]


# -- free_gpu


def _look_for_orphans(workspace: PathLike, args: Plan) -> Plan:
    wanted = args.get("pids")
    if wanted is not None and not (isinstance(wanted, list) and all(isinstance(pid, int) for pid in wanted)):
        raise VerbError("usage", "pids must be a list of process numbers.")
    memory: Dict[int, int] = {}
    for card in gpu.report()["gpus"]:
        for process in card.get("processes") or ():
            memory[process["pid"]] = memory.get(process["pid"], 0) + int(process.get("used_bytes") or 0)
    table = proctable.snapshot()
    items: List[Plan] = []
    refused: List[Plan] = []
    for pid in sorted(table) if wanted is None else sorted(set(wanted)):
        found = table.get(pid)
        if found is None or not proctable.is_live(found):
            refused.append({"what": str(pid), "why": f"there is no process {pid}"})
            continue
        owner, why = _owner(workspace, pid)
        if why:
            if wanted is not None:
                refused.append({"what": str(pid), "why": f"{pid} {proctable.name(pid)[:60]}: {why}"})
            continue
        items.append(
            {"pid": pid, "start_ticks": found.start_ticks, "name": proctable.name(pid), "owner": owner,
             "rss_bytes": found.rss_bytes, "gpu_bytes": memory.get(pid)}
        )  # fmt: skip
    # Its memory changes from moment to moment; who it is does not.
    secret = [[item["pid"], item["start_ticks"], item["owner"]] for item in items]
    total = sum(item["gpu_bytes"] or 0 for item in items)
    text = f"{len(items)} processes that ended runs and checks left behind" + (
        f", {total / 2**30:.1f} GiB of GPU memory" if total else ""
    )
    shown = [{key: item[key] for key in ("pid", "start_ticks", "name", "owner")} for item in items]
    measured = {str(item["pid"]): {"rss_bytes": item["rss_bytes"], "gpu_bytes": item["gpu_bytes"]} for item in items}
    return {"items": shown, "measured": measured, "refused": refused, "text": text, "secret": secret}


def _owner(workspace: PathLike, pid: int) -> Tuple[str, str]:
    """The ended run or check that left ``pid`` behind; or why it is not to be touched."""
    if pid in (1, os.getpid(), os.getppid()) or not proctable.is_ours(pid):
        return "", "it belongs to another user or to the system"
    environment = proctable.environment(pid)
    run_dir, check_dir = environment.get("EAGLE3_RUN_DIR"), environment.get(jobs.MARKER)
    home = rundir.workspace_path(workspace)
    if run_dir:
        place = Path(run_dir)
        if place.parent != home / "runs":
            return "", f"its run {run_dir} is not of this workspace"
        found = state.summary(place, time.time()) if (place / "launch.json").is_file() else {"state": "gone", "attempt": 0}
        attempt = environment.get("EAGLE3_ATTEMPT", "")
        if found["state"] in state.LIVE and str(found["attempt"]) == attempt:
            return "", f"its run {place.name} is {found['state']}"
        # The end is on disk before services are started again and people are told of it.
        starting = rundir.read_object(place / "attempts" / attempt / "starting.json")
        if identity.alive(starting.get("supervisor") or {}):
            return "", f"the supervisor of its run {place.name} is not through with the end yet"
        return f"run {place.name}", ""
    if check_dir:
        place = Path(check_dir)
        if place.parent != home / "checks":
            return "", f"its check {check_dir} is not of this workspace"
        return ("", f"its check {place.name} is running") if jobs.is_live(place) else (f"check {place.name}", "")
    return "", "it bears no mark of a run"


def _end_orphans(workspace: PathLike, plan: Plan, _: Any) -> Plan:
    chosen = [(item["pid"], item["start_ticks"]) for item in plan["items"]]
    left = proctable.end_all(lambda: [p for p in chosen if identity.is_running(*p)], grace_s=GRACE_S)
    ended = [item for item in plan["items"] if (item["pid"], item["start_ticks"]) not in left]
    text = f"{len(ended)} of {len(chosen)} processes have ended."
    return {"done": ended, "left": [[str(pid), "it does not end, not even by KILL"] for pid, _ in left], "text": text}


# -- clean_leftovers, delete


def _look_for_leftovers(workspace: PathLike, _: Plan) -> Plan:
    home, now = rundir.workspace_path(workspace), time.time()
    found: List[Path] = []
    refused = []
    for run_dir in rundir.runs(workspace):
        here = [
            run_dir / "states" / "raw",
            *sorted((run_dir / "states").glob(".*.tmp")),
            *sorted((run_dir / "states").glob("*.lock")),
        ]
        here = [path for path in here if path.exists() and not path.is_symlink()]
        if here and state.summary(run_dir, now)["state"] in state.LIVE:
            refused.append({"what": str(run_dir), "why": f"the run {run_dir.name} works there"})
            continue
        found += here
    for scratch in sorted(home.glob("checks/*/scratch")):
        if not jobs.is_live(scratch.parent):
            found.append(scratch)
    for scratch in sorted(home.glob(".check-*-*")):
        pid = scratch.name.split("-")[1]
        if pid.isdigit() and identity.stat(int(pid)) is None:
            found.append(scratch)
    return _plan_of(
        workspace, [str(path) for path in found if not path.is_symlink()], refused, "leftovers of extractions and checks"
    )


def _look_at_paths(workspace: PathLike, args: Plan) -> Plan:
    paths = args.get("paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise VerbError("usage", "delete needs paths: a list of paths inside the workspace.")
    return _plan_of(workspace, paths, [], "things picked")


def _plan_of(workspace: PathLike, texts: List[str], refused: List[Plan], what: str) -> Plan:
    items: List[Plan] = []
    listings = []
    now = time.time()
    roots: List[Path] = []
    for text in texts:
        try:
            path = trees.inside(workspace, text)
            why = trees.protected(workspace, path, now)
            if any(root == path or root in path.parents for root in roots):
                continue  # it goes with the one above
            entries = [] if why else trees.listing(path)
        except VerbError as error:
            refused.append({"what": text, "why": error.text})
            continue
        except OSError as error:
            refused.append({"what": text, "why": f"it cannot be looked at: {error.strerror or error}"})
            continue
        if why:
            refused.append({"what": text, "why": f"{path}: {why}"})
            continue
        roots.append(path)
        listings.append(entries)
        files = [entry for entry in entries if not entry.folder]
        items.append({"path": str(path), "files": len(files), "bytes": sum(entry.size for entry in files)})
    total = sum(item["bytes"] for item in items)
    text = f"{len(items)} {what}, {sum(item['files'] for item in items)} files, {total / 2**20:,.1f} MiB"
    return {"items": items, "refused": refused, "text": text, "secret": listings}


def _delete(workspace: PathLike, plan: Plan, listings: Any) -> Plan:
    done: List[Plan] = []
    left: List[Any] = []
    for item, entries in zip(plan["items"], listings):
        told = trees.remove(Path(item["path"]), entries)
        done.append({"path": item["path"], "files": told["files"], "bytes": told["bytes"]})
        left += told["left"]
    freed = sum(item["bytes"] for item in done)
    text = f"{sum(item['files'] for item in done)} files deleted, {freed / 2**20:,.1f} MiB."
    return {"done": done, "left": left, "text": text + (f" {len(left)} were left: {left[0][1]}." if left else "")}


# -- build_env


def _look_at_environment(workspace: PathLike, args: Plan) -> Plan:
    plan = buildenv.plan(workspace, args)
    why = plan.pop("refused", "")
    refused = [{"what": plan["folder"], "why": why}] if why else []
    return {"items": [] if why else [plan], "refused": refused, "text": plan["text"]}


def _build(workspace: PathLike, plan: Plan, _: Any) -> Plan:
    started = buildenv.start(workspace, plan["items"][0])
    return {"done": [plan["items"][0]], "left": [], "text": "The build has started; its log can be read.", **started}


_ACTIONS: Dict[str, Tuple[Callable[[PathLike, Plan], Plan], Callable[[PathLike, Plan, Optional[Any]], Plan]]] = {
    "free_gpu": (_look_for_orphans, _end_orphans),
    "clean_leftovers": (_look_for_leftovers, _delete),
    "delete": (_look_at_paths, _delete),
    "build_env": (_look_at_environment, _build),
}
