"""Which host keys are trusted: the console's own known_hosts together with the operator's.

asyncssh alone knows "trusted" and "not trusted". The difference between a host that nobody has met (a question)
and one whose key has changed (a stop) is made here, before anything is asked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
from asyncssh.known_hosts import SSHKnownHosts
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

DEFAULT_PORT = 22


@dataclass(frozen=True)
class Known:
    """What the files say about one name. ``elsewhere`` are keys of the same host on its standard port: good enough
    to trust, but another key on this port is then unknown, not changed (a container on a machine's port 2222)."""

    name: str
    trusted: list[asyncssh.SSHKey] = field(default_factory=list)
    authorities: list[asyncssh.SSHKey] = field(default_factory=list)
    revoked: list[asyncssh.SSHKey] = field(default_factory=list)
    elsewhere: list[asyncssh.SSHKey] = field(default_factory=list)
    certified: bool = False
    """Whether an authority is named for this very name, so that a key without its certificate is no unknown one."""

    @property
    def for_asyncssh(self) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        return self.trusted, self.authorities, self.revoked

    def algorithms(self) -> list[str]:
        """Host key algorithms to ask for: certificates first where an authority is known, then those of the known keys, so
        that a server with several shows the known one; the others too, so that a server which lost it is seen as
        changed. A server that can offer none of the list ends the connection without a word."""
        wanted = [*get_default_certificate_algs()] if self.authorities else []
        wanted += [alg for key in self.trusted for alg in key.sig_algorithms]
        return list(dict.fromkeys(alg.decode("ascii") for alg in [*wanted, *get_default_public_key_algs()]))


class KnownHosts:
    """Reads ``own`` and ``others``; writes only ``own`` (0600, in a 0700 folder)."""

    def __init__(self, own: Path, others: Sequence[Path]) -> None:
        self._own = own
        self._others = tuple(others)

    def known(self, host: str, port: int, alias: str | None = None) -> Known:
        """What is known of ``host`` (or of its HostKeyAlias, which, as in OpenSSH, goes without a port)."""
        entries = SSHKnownHosts()
        for path in (self._own, *self._others):
            for line in _lines(path):
                # OpenSSH passes over lines that it cannot read; so must whoever shares the file with it.
                with contextlib.suppress(ValueError):
                    entries.load(line)
        name = known_name(host, port, alias)
        trusted, authorities, revoked, *_ = entries.match(name, "", None)
        certified = bool(authorities)
        elsewhere: Sequence[asyncssh.SSHKey] = []
        if name.startswith("["):
            elsewhere, more_authorities, revoked_elsewhere, *_ = entries.match(host, "", None)
            revoked = [*revoked, *revoked_elsewhere]
            # OpenSSH looks for the name without its port too, and `@cert-authority *.example.org` matches no other.
            authorities = [*authorities, *more_authorities]
        return Known(name, list(trusted), list(authorities), list(revoked), list(elsewhere), certified)

    def remember(self, name: str, key: asyncssh.SSHKey) -> None:
        """Append the key under ``name``. Raises OSError where the folder cannot be written."""
        self._own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        algorithm, data = key.export_public_key("openssh").split()[:2]
        line = b" ".join((name.encode(), algorithm, data)) + b"\n"
        descriptor = os.open(self._own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def known_name(host: str, port: int, alias: str | None = None) -> str:
    """The name under which known_hosts lists it: alias, ``host``, or ``[host]:port``."""
    if alias:
        return alias
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        # Absent or unreadable: nothing is known from there, and the question is asked.
        return []
