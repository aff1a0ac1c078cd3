"""Puts the helper into the container when it is not there yet.

The usual connect does not come here at all: it starts the helper by its name, and only where that fails is the container
looked at, by a few lines of POSIX shell since even python3 may be missing, and the bundle sent.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from remote.bundle import RUNNER, SITE, Bundle
from remote.errors import ContainerError, LinkError
from remote.text import last_line, plain

if TYPE_CHECKING:
    from remote.connection import Connection

PROBE_LIMIT_S = 20.0
UPLOAD_LIMIT_S = 60.0
SLOWEST_BYTES_S = 20_000
OLDEST_PYTHON = (3, 8)

# Only characters that sh, csh and fish read alike; the program itself follows on stdin.
_RECEIVE = '-c "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"'

_PROBE = r"""
p=%(python)s
v=none
if command -v "$p" >/dev/null 2>&1; then
  v=$("$p" -I -S -c 'import sys; print("%%d.%%d" %% sys.version_info[:2])' 2>/dev/null)
fi
printf '\n%(marker)spython %%s\n' "${v:-broken}"
case $v in 3.8|3.9|3.[1-9][0-9]) printf '%(marker)send\n'; exit;; esac
for c in python3 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3 /opt/venv/bin/python3 \
  "$HOME/miniconda3/bin/python3" "$HOME/.venv/bin/python3" python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
  if [ "$c" != "$p" ] && f=$(command -v "$c" 2>/dev/null) \
    && "$f" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
    printf '\n%(marker)sother %%s\n' "$f"; break
  fi
done
printf '\n%(marker)send\n'
"""


@dataclass(frozen=True)
class Places:
    """Paths of one version, ``~`` still in them where the workspace was given so."""

    workspace: str
    version: str

    @property
    def folder(self) -> str:
        return f"{self.workspace.rstrip('/')}/lib/{self.version}"

    @property
    def runner(self) -> str:
        return f"{self.folder}/{RUNNER}"

    @property
    def site(self) -> str:
        return f"{self.folder}/{SITE}"


def check_workspace(text: str) -> str:
    """The workspace as given: absolute, or under the home there. Raises ContainerError(usage)."""
    if text == "~" or text.startswith(("/", "~/")):
        return text
    if not text or text.startswith("~"):
        raise ContainerError("usage", f"'{text}' is no workspace.", "Give an absolute path, or one that begins with ~/.")
    return f"~/{text}"


def shell_path(path: str) -> str:
    """Quoted for the login shell, the leading ``~`` left for it to expand."""
    if path.startswith("~/"):
        return "~/" + shlex.quote(path[2:]) if path != "~/" else "~/"
    return path if path == "~" else shlex.quote(path)


def helper_command(python: str, places: Places, marker: str) -> str:
    return f"exec {shell_path(python)} -I -S {shell_path(places.runner)} serve --packed --marker {marker}"


async def install(connection: Connection, python: str, workspace: str, bundle: Bundle) -> dict[str, Any]:
    """Upload ``bundle`` unless it is there. Returns {"already", "path", "pruned"}.

    Raises ContainerError (no Python, disk, permission) or LinkError; either way nothing half-installed is left.
    """
    await check_python(connection, python)
    marker = _marker()
    script = files("remote").joinpath("installer.py").read_bytes()
    request = {
        "workspace": workspace, "version": bundle.version, "sha256": bundle.sha256, "size": len(bundle.payload),
        "unpacked_bytes": bundle.unpacked_bytes, "marker": marker,
    }  # fmt: skip
    stdin = b"%d\n%s%s\n%s" % (len(script), script, json.dumps(request).encode(), bundle.payload)
    limit_s = UPLOAD_LIMIT_S + len(stdin) / SLOWEST_BYTES_S
    output = await connection.run(f"exec {shell_path(python)} -I -S {_RECEIVE}", stdin, limit_s=limit_s)
    for line in _marked(output.out, marker):
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            return answer
        raise ContainerError(answer["code"], plain(answer["text"]), plain(answer["remedy"]))
    raise ContainerError("failed", f"The helper could not be installed on {connection.host}.", "", last_line(output.err))


async def check_python(connection: Connection, python: str) -> None:
    """Raise ContainerError(python) with the next step where ``python`` cannot run the helper."""
    marker = _marker()
    script = _PROBE % {"python": _expanded_in_sh(python), "marker": marker}
    try:
        output = await connection.run("exec sh -s", script.encode(), limit_s=PROBE_LIMIT_S)
    except LinkError as error:
        if error.kind == "timeout":
            raise ContainerError(
                "failed", f"{connection.host} accepts the login but runs no shell command.", "", error.text
            ) from error
        raise
    facts = dict(re.findall(r"^(\w+) (.*)$", "\n".join(_marked(output.out, marker)), re.MULTILINE))
    if "python" not in facts:
        said = last_line(output.err) or last_line(output.out)
        text = f"{connection.host} accepts the login but runs no shell command" + (f": {said}" if said else ".")
        raise ContainerError("failed", text, "Log in with ssh and see what it answers.")
    found = facts["python"]
    version = tuple(int(part) for part in found.split(".")) if re.fullmatch(r"\d+\.\d+", found) else ()
    if version >= OLDEST_PYTHON:
        return
    what = {"none": f"There is no {python} on {connection.host}", "broken": f"{python} on {connection.host} does not start"}
    text = what.get(found, f"{python} on {connection.host} is version {found}") + "; the helper needs Python 3.8 or newer."
    other = facts.get("other", "")
    remedy = (
        f"Use the one at {plain(other)}: --python {plain(other)}."
        if other
        else "Install python3 there, or give another with --python."
    )
    raise ContainerError("python", text, remedy)


def _expanded_in_sh(path: str) -> str:
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def _marker() -> str:
    return f"@eagle3-{secrets.token_hex(8)}@"


def _marked(data: bytes, marker: str) -> list[str]:
    """What follows the marker in each line that has it."""
    lines = data.decode("utf-8", "replace").splitlines()
    return [line.partition(marker)[2].strip() for line in lines if marker in line]
