"""What is known of a container in which no usable Python is found: the answers of ``bare.sh`` as the console's own records.

Without Python there is no helper and no run. The operator still sees the machine, its disks, its GPUs and which
interpreters are there, and reads what to do next.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from eagle3.core.records import Disk, Gpu, GpuReport, Probe, VllmServer
from remote.errors import NoPython
from remote.text import plain

OLDEST_PYTHON = (3, 8)
NEEDED = "python3 ≥ 3.8"


@dataclass(frozen=True)
class Interpreter:
    """A Python in the container; ``version`` as it says it itself."""

    version: tuple[int, ...]
    path: str

    @property
    def usable(self) -> bool:
        return self.version >= OLDEST_PYTHON

    @property
    def words(self) -> str:
        return f"{'.'.join(map(str, self.version))} at {self.path}"


@dataclass
class Answers:
    """The lines of ``bare.sh``, by key. ``complete`` where it came to its end."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Sequence[str]) -> Answers:
        pairs = (line.partition(" ") for line in lines)
        return cls([(key, plain(value).strip()) for key, _, value in pairs])

    @property
    def complete(self) -> bool:
        return bool(self.all("end"))

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.lines if name == key]

    def one(self, key: str) -> str:
        return next(iter(self.all(key)), "")


def script(python: str, workspace: str, marker: str) -> bytes:
    """What ``sh -s`` is fed to answer for ``python``."""
    head = f"p={in_sh(python)}\nw={in_sh(workspace)}\nm={marker}\n"
    return head.encode() + files("remote").joinpath("bare.sh").read_bytes()


def in_sh(path: str) -> str:
    """A path quoted for sh, a leading ``~`` made the home there."""
    if path == "~":
        return '"$HOME"'
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def usable(answers: Answers) -> bool:
    """Whether the wanted Python is new enough for the helper."""
    return _version(answers.one("python")) >= OLDEST_PYTHON


def no_python(host: str, python: str, answers: Answers) -> NoPython:
    """The error for a container whose ``python`` is not usable: what is wrong, and the next step."""
    said = answers.one("python")
    found = [Interpreter(_version(version), path) for version, _, path in (line.partition(" ") for line in answers.all("found"))]
    found = [one for one in found if one.version and one.path]
    what = {"none": f"There is no {python} on {host}", "broken": f"{python} on {host} does not start"}
    text = what.get(said, f"{python} on {host} is version {said}") + f"; the helper needs {NEEDED}."
    better = next((one for one in found if one.usable), None)
    if better is not None:
        remedy = f"Use the one at {better.path}: --python {better.path}."
    else:
        remedy = "Install one there (apt-get install python3), or name one with --python."
    return NoPython(text, remedy, probe(answers), [one.words for one in found])


def probe(answers: Answers) -> Probe:
    """The answers in the shape that the helper's probe has. What was not said stays unknown."""
    return Probe(host=_host(answers), gpu=_gpu(answers), disks=_disks(answers), vllm=_servers(answers))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,2}", text) else ()


def _host(answers: Answers) -> dict[str, Any]:
    facts: dict[str, Any] = {key: answers.one(key) for key in ("hostname", "user", "kernel", "arch") if answers.one(key)}
    if system := answers.one("os").strip("\"'") or answers.one("system"):
        facts["os"] = system
    if (cpus := _number(answers.one("cpus"))) and cpus > 0:
        facts["cpus"] = cpus
    memory = {"MemTotal": "memory_total_bytes", "MemAvailable": "memory_available_bytes"}
    for line in answers.all("memory"):
        name, _, rest = line.partition(":")
        kib = _number(rest.split()[0]) if rest.split() else None
        if name in memory and kib is not None:
            facts[memory[name]] = kib << 10
    load = answers.one("load").split()[:3]
    if len(load) == 3 and all(re.fullmatch(r"\d+\.\d+", word) for word in load):
        facts["load"] = [float(word) for word in load]
    return facts


def _disks(answers: Answers) -> list[Disk]:
    """Of ``df -P -k``: device, blocks, used, free, share, mount point. Each mount once, the workspace's first."""
    disks: dict[str, Disk] = {}
    for line in answers.all("disk"):
        if match := re.fullmatch(r"(\S.*?)\s+(\d+)\s+(-?\d+)\s+(-?\d+)\s+\S+\s+(/.*)", line):
            mount = match[5]
            free_bytes = max(0, int(match[4])) << 10
            disks.setdefault(mount, Disk(path=mount, mount=mount, total_bytes=int(match[2]) << 10, free_bytes=free_bytes))
    return list(disks.values())


def _gpu(answers: Answers) -> GpuReport:
    said = answers.one("smi")
    if said == "none":
        return GpuReport(status="none", text="nvidia-smi is not there", source="shell")
    if said != "ok":
        return GpuReport(status="unknown", text="nvidia-smi gave no answer", source="shell")
    gpus, driver = [], ""
    for line in answers.all("gpu"):
        words = [word.strip() for word in line.split(",", 7)]
        if len(words) == 8 and (index := _number(words[0])) is not None:
            total, used = (_number(word) for word in words[2:4])
            driver = words[6]
            gpus.append(
                Gpu(
                    index=index, uuid=words[1], name=words[7],
                    memory_total_bytes=None if total is None else total << 20,
                    memory_used_bytes=None if used is None else used << 20,
                    utilization_pct=_number(words[4]), temperature_c=_number(words[5]),
                )
            )  # fmt: skip
    return GpuReport(status="ok" if gpus else "none", source="shell", driver=driver, gpus=gpus)


def _servers(answers: Answers) -> list[VllmServer]:
    servers = []
    for line in answers.all("vllm"):
        pid, _, command = line.partition(" ")
        port = re.search(r"--port[= ](\d+)", command)
        url = f"http://127.0.0.1:{port[1] if port else 8000}"
        servers.append(VllmServer(url=url, pid=_number(pid), health="unknown", text="seen in the process table; not asked"))
    return servers


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,15}", text.strip()) else None
