"""Section "python": the worker's and the server's interpreter, each for itself, and what is installed for it.

The interpreter is started once, to say who it is and where it looks; nothing of what is installed is imported. Packages
are read from their dist-info and, for what a version number does not tell, from their files.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

from eagle3.runner import host, proctable
from eagle3.runner.facts import packages

START_LIMIT_S = 8.0
_MARK = "@@eagle3@@"
_ASK = """
import json, locale, os, platform, site, sys, sysconfig
try:
    version = sys.implementation.version
    implementation = "%d.%d.%d" % version[:3]
    print("@@eagle3@@" + json.dumps({
        "executable": sys.executable, "prefix": sys.prefix, "base_prefix": getattr(sys, "base_prefix", sys.prefix),
        "version": platform.python_version(), "path": sys.path, "encoding": locale.getpreferredencoding(False),
        "user_site": site.getusersitepackages() if site.ENABLE_USER_SITE else "",
        "include": sysconfig.get_paths()["include"],
        "markers": {
            "implementation_name": sys.implementation.name, "implementation_version": implementation, "os_name": os.name,
            "platform_machine": platform.machine(), "platform_python_implementation": platform.python_implementation(),
            "platform_release": platform.release(), "platform_system": platform.system(),
            "platform_version": platform.version(), "python_full_version": platform.python_version(),
            "python_version": "%d.%d" % sys.version_info[:2], "sys_platform": sys.platform}}))
except Exception as error:
    print("@@eagle3@@" + json.dumps({"error": "%s: %s" % (type(error).__name__, error)}))
"""


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """``{"worker": ENVIRONMENT, "server": ENVIRONMENT, "same": bool, "tools": {…}}``; see `environment`."""
    asked = wants.get("pythons") or {}
    worker = str(asked.get("worker") or "")
    server = str(asked.get("server") or "") or worker
    different = list(dict.fromkeys([worker, server]))
    limit_s = START_LIMIT_S * float(wants.get("patience") or 1.0)
    calls = [functools.partial(environment, text, limit_s) for text in different]
    found = dict(zip(different, host.in_parallel(calls, 1.5 * limit_s)))
    late = {"error": "the interpreter gave no answer in time"}
    return {
        "worker": found[worker] or {"asked": worker, **late},
        "server": found[server] or {"asked": server, **late},
        "same": worker == server,
        "tools": tools(root),
    }


def environment(text: str, limit_s: float = START_LIMIT_S) -> Dict[str, Any]:
    """Who the interpreter is (``version``, ``kind``, ``prefix``, ``markers``), where it looks (``path``), what is there
    (``packages``), and which live processes run from it (``users``). ``error`` where it cannot be asked."""
    import sys

    program = os.path.expanduser(text) if text else sys.executable  # noqa: PTH111 - an unknown ~user is then not found
    found = shutil.which(program)
    about: Dict[str, Any] = {"asked": text, "executable": found or program}
    if found is None:
        there = Path(program).exists()
        return {**about, "error": f"{program} is {'not executable' if there else 'not there'}"}
    answer = _ask(found, limit_s)
    if answer.get("error"):
        return {**about, "error": str(answer["error"])}
    prefix = Path(answer["prefix"])
    scanned = packages.scan([part for part in answer["path"] if part not in ("", "/")])
    return {
        **about,
        **answer,
        "kind": kind(prefix, Path(answer["base_prefix"])),
        "pythonpath": [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part],
        "headers": (Path(answer["include"]) / "Python.h").is_file(),
        "command_vllm": (Path(found).parent / "vllm").exists(),
        "users": _users(prefix),
        "packages": scanned,
        "error": "",
    }


def kind(prefix: Path, base: Path) -> str:
    """ "conda", "uv", "venv" or "system", by what the environment's own folder says."""
    if (prefix / "conda-meta").is_dir():
        return "conda"
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "system" if prefix == base else "venv"
    return "uv" if any(line.split("=")[0].strip() == "uv" for line in text.splitlines()) else "venv"


def tools(root: Path) -> Dict[str, Any]:
    """Compilers and the library that compiled parts of vLLM look for; empty where there is none."""
    compilers = {name: os.environ.get(variable) or name for name, variable in (("gcc", "CC"), ("g++", "CXX"))}
    folders = [
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
    ]
    places = [
        Path(folder) if folder in os.environ.get("LD_LIBRARY_PATH", "") else root / folder.lstrip("/") for folder in folders
    ]
    numa = [
        hit for place in places if str(place) for hit in (*place.glob("libnuma.so.1"), *place.glob("*-linux-gnu/libnuma.so.1"))
    ]
    return {
        **{name: shutil.which(program.split()[0]) or "" for name, program in compilers.items() if program.split()},
        "libnuma": str(numa[0]) if numa else "",
        "uv": shutil.which("uv") or "",
    }


def _ask(program: str, limit_s: float) -> Dict[str, Any]:
    """What the interpreter says of itself. As the worker runs it: with its site-packages and this environment."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("EAGLE3_")}
    try:
        done = subprocess.run(
            [program, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=env,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{program} did not answer within {limit_s:.0f} s"}
    except OSError as error:
        return {"error": f"{program} cannot be started: {error.strerror or error}"}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            found = json.loads(line[len(_MARK) :])
            return found if isinstance(found, dict) else {"error": f"{program} gives no sensible answer"}
    last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"])[-1]
    return {"error": f"{program} does not start (exit code {done.returncode}): {last[:300]}"}


def _users(prefix: Path) -> List[Dict[str, Any]]:
    """Live processes that were started from this environment's own ``bin``, other than ourselves."""
    inside = f"{prefix}/bin/"
    result = []
    for found in proctable.snapshot().values():
        if found.pid == os.getpid() or not proctable.is_live(found):
            continue
        words = proctable.command_line(found.pid)
        if any(word.endswith(("/runner.pyz", "/eagle3/runner")) for word in words[1:5]):
            continue  # helpers, and what they start to ask the GPUs: they import nothing that is installed there
        if any(word.startswith(inside) for word in words[:2]):
            result.append({"pid": found.pid, "name": proctable.name(found.pid)})
    return result[:20]
