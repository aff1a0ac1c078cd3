"""Puts the helper into the container when it is not there yet.

The usual connect does not come here at all: it starts the helper by its name, and only where that fails is the container
looked at, by a few lines of POSIX shell since even python3 may be missing, and the bundle sent.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from remote import bare
from remote.bundle import RUNNER, SITE, Bundle
from remote.errors import ContainerError, LinkError
from remote.text import last_line, plain

if TYPE_CHECKING:
    from remote.connection import Connection, Output

PROBE_LIMIT_S = 60.0
"""Seconds: nvidia-smi and dead disks are given 10 s each."""
UPLOAD_LIMIT_S = 60.0
SLOWEST_BYTES_S = 20_000

# Only characters that sh, csh and fish read alike; the program itself follows on stdin.
_RECEIVE = '-c "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"'


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
    """Quoted for the login shell, be it sh, csh or fish; the leading ``~`` left for it to expand."""
    if path.startswith("~/"):
        return "~/" + _quoted(path[2:]) if path != "~/" else "~/"
    return path if path == "~" else _quoted(path)


def _quoted(text: str) -> str:
    # csh expands "!" within quotes too, and fish reads a backslash there: both stand outside of them, escaped.
    return "".join("\\" + part if part in ("!", "\\") else shlex.quote(part) for part in re.split(r"([!\\])", text) if part)


def helper_command(python: str, places: Places, marker: str) -> str:
    return f"exec {shell_path(python)} -I -S {shell_path(places.runner)} serve --marker {marker}"


async def install(connection: Connection, python: str, workspace: str, bundle: Bundle) -> dict[str, Any]:
    """Upload ``bundle`` unless it is there. Returns {"already", "path", "pruned"}.

    Raises ContainerError (no Python, disk, permission) or LinkError; either way nothing half-installed is left.
    """
    await check_python(connection, python, workspace)
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


async def check_python(connection: Connection, python: str, workspace: str) -> None:
    """Raise NoPython, with the next step and what a shell sees of the container, where ``python`` cannot run the helper."""
    marker = _marker()
    try:
        output = await connection.run("exec sh -s", bare.script(python, workspace, marker), limit_s=PROBE_LIMIT_S)
    except LinkError as error:
        if error.kind == "timeout":
            raise ContainerError(
                "failed", f"{connection.host} accepts the login but runs no shell command.", "", error.text
            ) from error
        raise
    answers = bare.Answers.of(_marked(output.out, marker))
    if not answers.one("python"):
        said = last_line(output.err) or last_line(output.out)
        text = f"{connection.host} accepts the login but runs no shell command" + (f": {said}" if said else ".")
        raise ContainerError("failed", text, "Log in with ssh and see what it answers.")
    if not bare.usable(answers):
        raise bare.no_python(connection.host, python, answers)


async def run_quietly(connection: Connection, command: str, limit_s: float) -> Output:
    """Run a command of POSIX sh, whatever the login shell is, and give its output without what that shell's start-up
    files say. Raises LinkError."""
    marker = _marker()
    mark = f"printf '\\n{marker}\\n'"
    script = f"{mark}\n{mark} >&2\nexec {command} </dev/null\n"
    output = await connection.run("exec sh -s", script.encode(), limit_s=limit_s)
    ours = f"{marker}\n".encode()
    return replace(output, out=output.out.partition(ours)[2], err=output.err.partition(ours)[2])


def _marker() -> str:
    return f"@eagle3-{secrets.token_hex(8)}@"


def _marked(data: bytes, marker: str) -> list[str]:
    """What follows the marker in each line that has it."""
    lines = data.decode("utf-8", "replace").splitlines()
    return [line.partition(marker)[2].strip() for line in lines if marker in line]
