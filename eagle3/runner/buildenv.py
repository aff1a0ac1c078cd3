"""A run's own Python environment, built beside those that are in use: ``<workspace>/env/<hash of what is in it>``.

It is a detached job, since it takes minutes; each command is shown before and logged while it runs. An environment that is
complete is never touched again, and one that something live uses never at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from eagle3.runner import detach, jobs, rundir, trees
from eagle3.runner.errors import VerbError
from eagle3.runner.rundir import PathLike

LIMIT_S = 3600.0
OLDEST_WORKER = (3, 11)
COMPLETE = "eagle3-complete.json"
"""The file that makes an environment whole: what is in it and how it was built."""

_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\s;]*(\s*;.*)?")
_OPTIONS = {"--index-url": 1, "--extra-index-url": 1, "--find-links": 1, "--no-index": 0, "--pre": 0, "--only-binary": 1}


def plan(workspace: PathLike, args: Dict[str, Any]) -> Dict[str, Any]:
    """What would be built: ``{"folder","tool","commands","hash","replaces","text"}``, with ``refused`` where it must not be.

    ``args``: ``what`` ("worker": the pinned list that this version was tested with) or ``requirements`` (with what they
    need) and ``no_deps`` (alone, after them); ``python``: the interpreter to build on (default: one that is new enough);
    ``options``: an index or a wheel folder for the installer; ``tool``: "uv" or "pip" (default: uv where it is).
    """
    lists = _lists(args)
    python = str(args.get("python") or _base_python())
    version = _version(python)
    if args.get("what") == "worker" and _numbers(version) < OLDEST_WORKER:
        oldest = ".".join(map(str, OLDEST_WORKER))
        raise VerbError("usage", f"{python} is version {version}; the worker needs {oldest}.", "Give another in python.")
    options = _checked_options(args.get("options") or [])
    tool = str(args.get("tool") or ("uv" if shutil.which("uv") else "pip"))
    if tool not in ("uv", "pip") or (tool == "uv" and not shutil.which("uv")):
        raise VerbError("usage", f"{tool} cannot be used here.", "Use pip, or install uv.")
    content = json.dumps([lists, version], sort_keys=True)
    name = hashlib.sha256(content.encode()).hexdigest()[:16]
    home = rundir.workspace_path(workspace)
    folder = home / "env" / name
    told: Dict[str, Any] = {
        "folder": str(folder), "hash": name, "tool": tool, "python": str(folder / "bin" / "python"), "version": version,
        "commands": _commands(tool, python, folder, lists, options), "replaces": folder.exists(),
        "text": f"a Python {version} environment with {sum(map(len, lists))} requirements in {folder}, by {tool}",
    }  # fmt: skip
    if (home / "env").is_symlink() or folder.is_symlink():
        told["refused"] = f"{folder} is a link or lies behind one"
    elif (folder / COMPLETE).is_file():
        told["refused"] = f"it is there already: set worker_python to {told['python']}"
    elif folder.exists() and trees.users_of(folder):
        pid, who = trees.users_of(folder)[0]
        told["refused"] = f"{folder} is in use by process {pid} {who}"
    return told


def start(workspace: PathLike, plan: Dict[str, Any]) -> Dict[str, Any]:
    """Begin to build what ``plan`` says, as a job of its own; ``{"check_id","already"}``."""
    folder = Path(plan["folder"])
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"env-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    argv = detach.own_command("build-env", "plan.json")
    return jobs.start(workspace, name, "environment build", argv, files={"plan.json": plan}, limit_s=LIMIT_S)


def build(plan_file: Path) -> int:
    """The job: run the commands one after another, tell each as a line on stdout, its output going to the log (stderr)."""
    plan = rundir.read_object(plan_file)
    folder = Path(plan["folder"])
    if (folder / COMPLETE).is_file() or (folder.exists() and trees.users_of(folder)):
        _tell({"step": "refused", "ok": False, "text": f"{folder} is complete or in use; nothing was changed."})
        return 1
    if folder.is_dir() and not folder.is_symlink():  # half of an earlier build
        trees.remove(folder, trees.listing(folder))
    for command in plan["commands"]:
        shown = " ".join(command)
        _tell({"doing": shown, "t": time.time()})
        os.write(2, f"$ {shown}\n".encode("utf-8", "backslashreplace"))
        begun = time.monotonic()
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False, env=_environment()).returncode
            said = f"ended with code {code}"
        except OSError as error:
            code, said = 1, f"cannot be started: {error.strerror or error}"
        _tell({"step": shown, "ok": code == 0, "seconds": round(time.monotonic() - begun, 2), "text": said})
        if code != 0:
            return 1
    rundir.write_json(folder / COMPLETE, {"v": 1, "t": time.time(), **plan})
    _tell({"step": "complete", "ok": True, "text": f"The environment is ready: worker_python = {plan['python']}"})
    return 0


def _tell(line: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _environment() -> Dict[str, str]:
    """Ours, without what would lead an installer into another environment."""
    dropped = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    return {key: value for key, value in os.environ.items() if key not in dropped}


def _lists(args: Dict[str, Any]) -> List[List[str]]:
    """Requirements to install with what they need, and those to install alone."""
    if args.get("what") == "worker" and not args.get("requirements") and not args.get("no_deps"):
        return [_pinned("torch"), _pinned("worker")]
    lists = [list(args.get("requirements") or []), list(args.get("no_deps") or [])]
    if not any(lists):
        raise VerbError("usage", "build_env needs what = 'worker', or requirements.")
    for line in (line for lines in lists for line in lines):
        if not isinstance(line, str) or not _REQUIREMENT.fullmatch(line.strip()):
            raise VerbError("usage", f"{line!r} is not a requirement such as torch==2.13.0.", "Options go into options.")
    return lists


def _pinned(name: str) -> List[str]:
    data = pkgutil.get_data("eagle3.runner", f"environments/{name}.txt")
    if data is None:
        raise VerbError("failed", f"The list of packages {name}.txt is not in this installation.", "Install it again.")
    return [line.strip() for line in data.decode("utf-8").splitlines() if line.strip() and not line.startswith("#")]


def _checked_options(options: Any) -> List[str]:
    """Only where packages come from may be chosen: nothing that writes elsewhere."""
    words = [str(word) for word in options]
    at = 0
    while at < len(words):
        key, equals, _ = words[at].partition("=")
        if key not in _OPTIONS or (equals and not _OPTIONS[key]):
            raise VerbError("usage", f"The option {words[at]} is not allowed here.", f"Use {', '.join(sorted(_OPTIONS))}.")
        at += 1 if equals else 1 + _OPTIONS[key]
    return words


def _commands(tool: str, python: str, folder: Path, lists: List[List[str]], options: List[str]) -> List[List[str]]:
    inner = str(folder / "bin" / "python")
    if tool == "uv":
        create = ["uv", "venv", "--python", python, str(folder)]
        install = ["uv", "pip", "install", "--python", inner]
    else:
        create = [python, "-m", "venv", str(folder)]
        install = [inner, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    commands = [create]
    for needs, more in zip(lists, ([], ["--no-deps"])):
        if needs:
            commands.append([*install, *options, *more, *needs])
    return commands


def _base_python() -> str:
    """The first interpreter here that is new enough for the worker; else the helper's own."""
    names = ("python3.13", "python3.12", "python3.11", "python3")
    for candidate in (sys.executable, *filter(None, map(shutil.which, names))):
        with contextlib.suppress(VerbError):  # it does not start: the next one
            if _numbers(_version(candidate)) >= OLDEST_WORKER:
                return candidate
    return sys.executable


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _version(python: str) -> str:
    """``3.11.7`` of an interpreter. Raises VerbError(usage) where it does not start."""
    command = [python, "-I", "-S", "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise VerbError("usage", f"The interpreter {python} does not start.", "Give another in python.") from error
    return done.stdout.decode("utf-8", "replace").strip()
