"""The operator's ssh_config as OpenSSH reads it, where asyncssh reads it otherwise."""

from __future__ import annotations

import os
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
