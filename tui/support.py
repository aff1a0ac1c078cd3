"""`eagle3-tui support HOST RUN`: a redacted bundle for a bug report, as one tar.gz of text files.

The container redacts what it gives; here the facts of the host and of this console are added, everything is redacted
again (this side knows values that no file holds), and a manifest says what was left out and why.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from eagle3 import __version__
from remote.container import redact
from remote.errors import ContainerError, LinkError
from tui.formats import bytes_label, one_line
from tui.run_secrets import NAME

if TYPE_CHECKING:
    from tui.oneshot import Talk

PACKAGES = ("eagle3-console", "asyncssh", "textual", "pydantic", "cryptography")
NEVER = (
    "Never taken: prompts and answers, hidden states, weights, people's notes, environments, passwords and tokens. "
    "Look through the files before you hand them on: a log holds what the programs of the run chose to print."
)


async def support(talk: Talk, run_id: str, out: Path) -> int:
    """Collect, compose, write ``out`` (0600) and say what is in it. Raises ContainerError where it cannot be written."""
    found = await talk.container.collect(run_id)
    try:
        host: dict[str, Any] = (await talk.container.probe()).model_dump()
        host["runs"] = [run for run in host["runs"] if run.get("run_id") == run_id]
    except (LinkError, ContainerError) as error:
        host = {"error": error.text}
    secrets = [value for name in found.get("secret_names") or [] if isinstance(name, str) and (value := os.environ.get(name))]
    files = compose(run_id, found, host, console_facts(talk), secrets, time.time())
    try:
        size_bytes = write(out, f"support-{run_id}", files)
    except OSError as error:
        text = f"The bundle cannot be written to {out}: {error.strerror}."
        raise ContainerError("failed", text, "Name another file with --out.") from error
    manifest = json.loads(files["MANIFEST.json"])
    left = ", ".join(f"{entry['name']} ({entry['why']})" for entry in manifest["left_out"][:8])
    words = [
        f"Wrote {out}: {len(files)} files, {bytes_label(size_bytes)}.",
        f"Left out: {one_line(left, 500) or 'nothing'}.",
        NEVER,
    ]
    talk.say("\n".join(words), {"path": str(out), "bytes": size_bytes, **manifest})
    return 0


def console_facts(talk: Talk) -> dict[str, Any]:
    """This side: versions and how the link stands. Not the environment, not the name of the operator's machine."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    link = talk.container.link
    return {
        "console": __version__, "python": platform.python_version(), "system": platform.platform(), "packages": versions,
        "link": {"status": link.status, "reason": link.reason, "since": link.since},
    }  # fmt: skip


def compose(
    run_id: str, found: Mapping[str, Any], host: Mapping[str, Any], console: Mapping[str, Any], secrets: Iterable[str], now: float
) -> dict[str, str]:
    """Name → text of every file of the bundle, the manifest among them. Pure."""
    # As a JSON text has them, too.
    known = [form for value in secrets for form in (value, json.dumps(value)[1:-1])]

    def clean(text: str) -> str:
        return redact(text, known)

    files: dict[str, str] = {}
    listed: list[dict[str, Any]] = []
    for entry in found.get("files") or []:
        name = str(entry.get("name"))
        if _inside(name):
            files[f"run/{name}"] = clean(str(entry.get("text") or ""))
            listed.append({"name": f"run/{name}", "bytes": entry.get("bytes"), "left_out_bytes": entry.get("left_out_bytes")})
    for name, value in (
        ("summary.json", found.get("summary")), ("versions.json", found.get("versions")), ("host.json", host),
        ("console.json", console),
    ):  # fmt: skip
        files[name] = clean(json.dumps(value or {}, indent=1, ensure_ascii=False, default=str) + "\n")
    manifest = {
        "v": 1, "run_id": run_id, "made_at": now, "console": __version__, "files": listed,
        "left_out": list(found.get("left_out") or []), "never": NEVER,
        "secret_names": [name for name in found.get("secret_names") or [] if isinstance(name, str) and NAME.fullmatch(name)],
    }  # fmt: skip
    files["MANIFEST.json"] = clean(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return files


def _inside(name: str) -> bool:
    """Whether a name from the container stays inside the bundle's folder when somebody unpacks it."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def write(out: Path, folder: str, files: Mapping[str, str]) -> int:
    """The tar.gz, whole or not at all, readable by this user alone. Gives its bytes; raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name, text in sorted(files.items()):
                data = text.encode("utf-8", "replace")
                info = tarfile.TarInfo(f"{folder}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                archive.addfile(info, io.BytesIO(data))
        size_bytes = Path(temporary).stat().st_size
        Path(temporary).replace(out)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return size_bytes
