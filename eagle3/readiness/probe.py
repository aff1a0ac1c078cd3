"""All deep probes one after another, each answer told as soon as it is there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional

from eagle3.readiness import asking, devices, generate, sections
from eagle3.runner import rundir

Emit = Callable[[Dict[str, Any]], None]
"""Takes ``{"doing": section, "limit_s", "t"}`` before a section is asked and ``{"section", "facts", "t"}`` after."""

CANARY_S = 780.0
"""Seconds that the canary may take where the wants do not say; else the start of its server, its first answer and a bit."""
_SERVER_GRACE_S = 25.0


def run(wants: Dict[str, Any], emit: Emit, *, scratch: Path, only: Optional[Iterable[str]] = None) -> None:
    """Ask every section (or ``only`` some) and tell it. ``scratch`` is a folder of its own, emptied and removed at the end.

    A section that meets a defect of ours says so in its facts and the others go on.
    """
    ask: Dict[str, Callable[[], Dict[str, Any]]] = {
        "deep.imports.worker": lambda: sections.imports(wants, scratch, "worker"),
        "deep.imports.server": lambda: sections.imports(wants, scratch, "server"),
        "deep.disk": lambda: sections.disk(wants, scratch),
        "deep.model": lambda: sections.model(wants, scratch),
        "deep.kernels": lambda: sections.kernels(wants, scratch),
        "deep.allreduce": lambda: sections.allreduce(wants, scratch),
        "deep.generate": lambda: generate.generate(wants),
        "deep.canary": lambda: canary(wants, scratch),
    }
    if devices.held(wants):
        os.nice(10)  # somebody works here: the probes take what is left
    chosen = list(sections.ORDER) if only is None else [name for name in sections.ORDER if name in set(only)]
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        for name in chosen:
            emit({"doing": name, "limit_s": limit_s(wants, name), "t": time.time()})
            begun = time.monotonic()
            try:
                facts = ask[name]()
            except Exception as error:  # noqa: BLE001 - a defect in one probe must not hide what the others find
                sys.stderr.write(traceback.format_exc())
                facts = {"error": f"the probe met a defect: {type(error).__name__}: {error}"}
            emit({"section": name, "facts": {**facts, "took_s": round(time.monotonic() - begun, 3)}, "t": time.time()})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def canary(wants: Dict[str, Any], scratch: Path) -> Dict[str, Any]:
    """One real extraction in the worker's environment, unless somebody works on the devices that it needs.

    Its server lives and dies within this call. ``left`` names what lay in its folder once the server was gone; the
    folder is removed, and ``removed_bytes`` says how much that was.
    """
    if not wants.get("spec_toml"):
        return {"skipped": "no run was named, so there is no target to extract from"}
    held = devices.held(wants)
    if held:
        names = "; ".join(f"{device}: {owner}" for device, owner in sorted(held.items()))
        return {"skipped": f"the devices are not free ({names}); a second model would disturb them", "held": held}
    folder = scratch / "canary"
    folder.mkdir(mode=0o700)
    (folder / "spec.toml").write_text(str(wants["spec_toml"]), encoding="utf-8")
    worker, server = sections.python_of(wants, "worker"), sections.python_of(wants, "server")
    command = [worker, "-m", "eagle3.readiness.canary", str(folder), server]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(package_home()), os.environ.get("PYTHONPATH", "")]))}
    outcome = asking.ask(command, limit_s=limit_s(wants, "deep.canary"), cwd=scratch, env=env, grace_s=_SERVER_GRACE_S)
    log = _tail(folder / "run" / "logs" / "server-extract.log")
    removed = sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
    shutil.rmtree(folder, ignore_errors=True)
    facts = outcome.answer or {"failed": outcome.said, "log": log}
    return {**facts, "removed_bytes": removed, "remains": folder.exists()}


def limit_s(wants: Dict[str, Any], section: str) -> float:
    """The most seconds that a section may take. The canary's follows from the spec: ``expect.canary_s`` of the wants."""
    if section == "deep.generate":
        return generate.LIMIT_S * generate.TRIES + 10.0
    if section == "deep.canary":
        return float((wants.get("expect") or {}).get("canary_s") or CANARY_S)
    return sections.limit_s(wants, section)


def package_home() -> Path:
    """The folder from which this ``eagle3`` is imported."""
    return Path(__file__).resolve().parents[2]


def scratch_folder(wants: Dict[str, Any]) -> Path:
    """A new folder for a check that is no job: in the workspace where that can be written, else in the system's."""
    place = rundir.workspace_path(wants["workspace"])
    parent = place if os.access(place, os.W_OK) else Path(tempfile.gettempdir())
    return Path(tempfile.mkdtemp(prefix=f".check-{os.getpid()}-", dir=parent))


def _tail(path: Path, limit: int = 2000) -> str:
    try:
        return path.read_bytes()[-limit:].decode("utf-8", "replace")
    except OSError:
        return ""
