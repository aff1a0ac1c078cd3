"""What a run is made from besides its spec: the target's files, the content of the prompts, and the packages.

Each attempt writes it down, so that a run started from another's ``spec.toml`` can be held against it: a spec names its target
and its prompts by place, and what lies there may be another.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from eagle3 import __version__
from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import fingerprint
from eagle3.hub import commit_of
from eagle3.runner import rundir, state
from eagle3.stages.prompts import content_hash, user_file
from eagle3.targets import model_dir
from eagle3.versions import versions_of

FILE = "made_from.json"


def here(spec: RunSpec, python: str) -> dict[str, Any]:
    """What a run of this spec would be made from on this machine. ``python``: the worker's interpreter.

    ``{"v","t","eagle3","target": {"source","commit","fingerprint"}, "prompts": {"file","sha256"}, "versions",
    "server_versions"}``; the commit is empty where it is not known, the fingerprint where the target is not here, the versions
    where the interpreter cannot be asked, ``server_versions`` where the servers run in the worker's interpreter.
    """
    folder, server = model_dir(spec.target.model), spec.server_python
    return {
        "v": 1,
        "t": time.time(),
        "eagle3": __version__,
        "target": {
            "source": spec.target.source,
            "commit": commit_of(folder),
            "fingerprint": fingerprint(folder) if folder.is_dir() else "",
        },
        "prompts": {"file": spec.data.prompts, "sha256": _prompts_sha256(spec)},
        "versions": versions_of(python),
        "server_versions": versions_of(server) if server and server != python else {},
    }


def _prompts_sha256(spec: RunSpec) -> str:
    if spec.data.prompts != "builtin":
        return content_hash(user_file(spec.data.prompts)) or ""
    return hashlib.sha256(files("eagle3").joinpath("data", "prompts.jsonl").read_bytes()).hexdigest()


def of_run(folder: Path) -> dict[str, Any]:
    """What the run was made from: as the ``result.json`` beside its spec has it, or its last attempt; empty where none does."""
    told = rundir.read_object(folder / "result.json").get("made_from")
    records = (rundir.read_object(state.attempt_dir(folder, attempt) / FILE) for attempt in reversed(state.attempts(folder)))
    return next((found for found in (told, *records) if isinstance(found, dict) and found), {})


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences that say what is another now; what one of the two does not tell is not compared."""
    told = []
    old, new = _part(then, "target"), _part(now, "target")
    if _differ(old, new, "fingerprint"):
        commits = f"; commit {new['commit'][:12]}, then {old['commit'][:12]}" if _differ(old, new, "commit") else ""
        told.append(f"The target's files are others (fingerprint {new['fingerprint']}, then {old['fingerprint']}{commits}).")
    old, new = _part(then, "prompts"), _part(now, "prompts")
    if old.get("sha256") and new and not new.get("sha256"):
        told.append(f"The prompts {new.get('file')} are not here (SHA-256 {old['sha256'][:12]}).")
    elif _differ(old, new, "sha256"):
        told.append(f"The prompts {new['file']} are others (SHA-256 {new['sha256'][:12]}, then {old['sha256'][:12]}).")
    if then.get("eagle3") and now.get("eagle3") and then["eagle3"] != now["eagle3"]:
        told.append(f"eagle3 is {now['eagle3']}, then {then['eagle3']}.")
    return [*told, *_other_versions(then, now)]


def _other_versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    told = []
    apart = bool(_part(then, "server_versions") or _part(now, "server_versions"))
    for name, whose in (("versions", "worker"), ("server_versions", "servers")):
        # Servers of which nothing is said run in the worker's interpreter.
        old, new = (_part(record, name) or _part(record, "versions") for record in (then, now))
        changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        if not old or not changed or (name == "server_versions" and not apart):
            continue
        pairs = ", ".join(f"{key} {new.get(key, 'none')}, then {old.get(key, 'none')}" for key in changed)
        told.append(f"Packages of the {whose} differ: {pairs}." if new else f"The packages of the {whose} cannot be told.")
    return told


def _part(record: Mapping[str, Any], name: str) -> dict[str, str]:
    found = record.get(name)
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _differ(old: Mapping[str, str], new: Mapping[str, str], name: str) -> bool:
    return bool(old.get(name) and new.get(name) and old[name] != new[name])
