"""What is put into the container: the helper as one zipapp, and the `eagle3` package beside it.

Built from whatever `eagle3` this process imports, a checkout or an installed wheel. Its version is a hash of the files'
contents, so equal code is never uploaded twice and changed code never runs under an old name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import eagle3

RUNNER = "runner.pyz"
SITE = "site"
_TIMESTAMP = (2020, 1, 1, 0, 0, 0)
_MAIN = """import sys

if sys.version_info < (3, 8):
    sys.exit("The helper needs Python 3.8 or newer; this is %d.%d." % sys.version_info[:2])

from eagle3.runner.__main__ import main

sys.exit(main())
"""
_METADATA = "Metadata-Version: 2.1\nName: eagle3-console\nVersion: {version}\n"


@dataclass(frozen=True)
class Bundle:
    """``version`` names the folder; ``payload`` is a zip of that folder's contents, ``sha256`` is the payload's."""

    version: str
    payload: bytes
    sha256: str
    unpacked_bytes: int


@functools.cache
def bundle(package: Path | None = None) -> Bundle:
    """The bundle of the `eagle3` package at ``package`` (default: the imported one). Raises OSError."""
    root = package or Path(eagle3.__file__).parent
    files = {f"eagle3/{path.relative_to(root).as_posix()}": path.read_bytes() for path in _sources(root)}
    helper = {name: data for name, data in files.items() if name == "eagle3/__init__.py" or name.startswith("eagle3/runner/")}
    helper["__main__.py"] = _MAIN.encode()
    if (nvml := importlib.util.find_spec("pynvml")) is not None and nvml.origin:
        helper["pynvml.py"] = Path(nvml.origin).read_bytes()

    digest = hashlib.sha256()
    for prefix, group in (("runner", helper), ("site", files)):
        for name, data in sorted(group.items()):
            digest.update(f"{prefix}/{name}\0{len(data)}\0".encode() + data)
    version = f"{eagle3.__version__}-{digest.hexdigest()[:16]}"

    contents = {RUNNER: _zip(helper), **{f"{SITE}/{name}": data for name, data in files.items()}}
    contents[f"{SITE}/eagle3_console-{eagle3.__version__}.dist-info/METADATA"] = _METADATA.format(
        version=eagle3.__version__
    ).encode()
    payload = _zip(contents)
    return Bundle(version, payload, hashlib.sha256(payload).hexdigest(), sum(map(len, contents.values())))


def _sources(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix not in (".pyc", ".swp")
        and not path.name.startswith(".")
    )


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _TIMESTAMP)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".pyz") else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()
