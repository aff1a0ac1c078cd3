"""The operator's ssh_config as OpenSSH reads it, where asyncssh reads it otherwise."""

from __future__ import annotations

import glob
import os
import re
import shlex
from pathlib import Path
from typing import Any, Protocol

from remote.settings import Settings


class Options(Protocol):
    """asyncssh's view of the config for one host."""

    def get(self, option: str, default: object = None) -> object: ...


def configs(settings: Settings) -> list[Path] | None:
    """The files to read, the operator's first: of an option the first value counts. None where there is none."""
    named = [settings.ssh_config] if settings.ssh_config else [Path("~/.ssh/config").expanduser(), settings.system_ssh_config]
    return [path for path in named if path.is_file()] or None


def login_options(config: Options) -> dict[str, Any]:
    """What has to be said to asyncssh beside the files.

    An IdentityFile that is not there is passed over, not an error; IdentityAgent may be ``SSH_AUTH_SOCK`` or ``$VARIABLE``.
    """
    options: dict[str, Any] = {}
    identities = config.get("IdentityFile")
    if isinstance(identities, list) and identities:
        there = [path for path in identities if _exists(path) or _exists(f"{path}.pub")]
        if len(there) < len(identities):
            # As asyncssh does where it finds them in the config itself.
            options |= {"client_keys": there, "ignore_encrypted": True}
    agent = config.get("IdentityAgent")
    if isinstance(agent, str) and (agent == "SSH_AUTH_SOCK" or (agent.startswith("$") and not agent.startswith("${"))):
        options["agent_path"] = os.environ.get(agent.removeprefix("$")) or None
    return options


def _exists(path: object) -> bool:
    return Path(str(path)).expanduser().is_file()


INCLUDE_DEPTH = 8
"""Includes within includes that are followed; ssh itself stops at 16."""


def host_names(settings: Settings) -> list[str]:
    """The hosts that the operator's ssh_config names one by one, in its order: no patterns (``*``, ``?``) and no negations.
    Files that cannot be read name none."""
    found: dict[str, None] = {}
    for path in configs(settings) or []:
        _collect(path, path.parent, found, INCLUDE_DEPTH)
    return list(found)


def _collect(path: Path, folder: Path, found: dict[str, None], depth: int) -> None:
    """Names of ``path`` into ``found``; includes without a folder lie beside the file that was read first."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            # "Host a b", "Host=a" and 'Host "a b"' are the same to ssh; a comment ends the line.
            words = shlex.split(re.sub(r"^\s*(\w+)\s*=", r"\1 ", line), comments=True)
        except ValueError:
            continue  # an open quotation mark: ssh would refuse the file, and says so when it is used
        if not words:
            continue
        keyword, names = words[0].lower(), words[1:]
        if keyword == "host":
            found.update(dict.fromkeys(name for name in names if not set(name) & set("*?!")))
        elif keyword == "include" and depth:
            for pattern in names:
                place = Path(pattern).expanduser()
                full = place if place.is_absolute() else folder / place
                for included in sorted(glob.glob(str(full))):  # noqa: PTH207 - the pattern may be absolute
                    _collect(Path(included), folder, found, depth - 1)
