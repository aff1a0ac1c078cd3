"""Python environments whose packages are real as far as metadata goes: interpreter, dist-info, version files, libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.readiness.light import tree

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
Files = Mapping[str, str | bytes]


def environment(home: Path, *packages: Files, cfg: str = "") -> str:
    """The interpreter of a new environment at ``home`` with ``packages`` in it. It is what venv makes, without pip: a link and
    a pyvenv.cfg."""
    base = Path(sys.base_prefix) / "bin" / VERSION
    tree(home, {"pyvenv.cfg": f"home = {base.parent}\ninclude-system-site-packages = false\n{cfg}"})
    (home / "bin").mkdir(exist_ok=True)
    python = home / "bin" / "python"
    if not python.exists():
        python.symlink_to(base)
    site = home / "lib" / VERSION / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    for files in packages:
        tree(site, files)
    return str(python)


def package(
    name: str, version: str, requires: Iterable[str] = (), python: str = "", **files: str | bytes
) -> dict[str, str | bytes]:
    """A distribution: its dist-info, and ``files`` (path: content) beside it."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
    lines += [f"Requires-Python: {python}"] if python else []
    info = f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
    return {info: "\n".join(lines) + "\n\nAbout it.\nRequires-Dist: not-a-header\n", **files}


def torch(version: str, cuda: str = "") -> dict[str, str | bytes]:
    """torch with the version file that its wheels have."""
    built = f"'{cuda}'" if cuda else "None"
    said = f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {built}\nhip: Optional[str] = None\n"
    return package("torch", version, **{"torch/version.py": said})


def torchvision(version: str, library: bytes = b"") -> dict[str, str | bytes]:
    """torchvision as it comes from the index: no local part in its metadata, the build in version.py and in its library."""
    files: dict[str, str | bytes] = {"torchvision/version.py": f"__version__ = '{version}'\ngit_version = 'x'\n"}
    if library:
        files["torchvision/_C.so"] = b"\x7fELF" + b"\0" * 4000 + library + b"\0" * 4000
    return package("torchvision", version.partition("+")[0], **files)


def vllm(
    name: str = "vllm", version: str = "0.32.0", *, config: str = "extract_hidden_states eagle3", requires: Iterable[str] = ()
) -> Files:
    """vLLM's distribution with the source file that says what it can speculate with."""
    return package(name, version, requires, **{"vllm/__init__.py": "", "vllm/config/speculative.py": f"METHODS = '{config}'\n"})


def whole_worker() -> list[Files]:
    """What a worker needs, all of versions that fit."""
    small = ["safetensors", "httpx", "psutil", "prometheus-client", "pydantic"]
    wants = ["torch<=2.14.1,>=2.9.0", "transformers<=5.19.0,>=5.0.0", "torchvision"]
    return [
        torch("2.13.0+cpu"), package("transformers", "5.19.0"), package("speculators", "0.9.0", wants, ">=3.11"),
        *(package(name, "1.0") for name in small),
    ]  # fmt: skip
