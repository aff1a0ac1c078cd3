"""A real OpenSSH server on a loopback port, with keys made for the test."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import random
import shlex
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from eagle3.runner import proctable

SSHD = Path("/usr/sbin/sshd")
START_LIMIT_S = 30.0
_reserved: list[int] = []


def free_port() -> int:
    """A free port below those that the kernel gives to outgoing connections, so that it is still free at a restart, and above
    those that the product takes for its servers (`eagle3.engines.ports`).

    It stays this process's until its end: between two starts of a server nobody listens on it, and another test
    process that took it then would be mistaken for the server.
    """
    folder = Path(tempfile.gettempdir()) / f"eagle3-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True, mode=0o700)
    for port in random.sample(range(30000, 32000), 200):
        descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with socket.socket() as probe, contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("127.0.0.1", port))
            _reserved.append(descriptor)
            return port
        os.close(descriptor)
    raise RuntimeError("no port of 200 is free")


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """A key pair without passphrase at ``path`` and ``path``.pub."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def lock_key(path: Path, passphrase: str) -> None:
    """Put a passphrase on a key that has none."""
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", passphrase, "-f", str(path)], check=True)


@dataclass
class Sshd:
    """``folder`` holds everything, the account's home there included. ``shell`` is the account's login shell, which reads
    its own start-up files in that home; ``noise`` is printed before it starts; ``path`` replaces PATH there,
    ``environment`` adds to it all. With ``password``
    the account has one, in the server's own view of /etc only (for root, in a mount namespace), and no key is accepted."""

    folder: Path
    noise: str = ""
    path: str = ""
    shell: str = "/bin/bash"
    password: str = ""
    more_config: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.host_key = make_key(self.folder / "host_key")
        self.client_key = make_key(self.folder / "client_key")
        (self.folder / "authorized_keys").write_bytes(self.client_key.with_suffix(".pub").read_bytes())

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def known_name(self) -> str:
        return f"[127.0.0.1]:{self.port}"

    def public_key(self) -> str:
        """The host key as known_hosts has it: type and data."""
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    def fingerprint(self) -> str:
        listed = subprocess.run(["ssh-keygen", "-lf", str(self.host_key)], check=True, capture_output=True, text=True)
        return listed.stdout.split()[1]

    def write_client_config(self, path: Path, more: str = "") -> Path:
        """An ssh_config that logs in with the test's key."""
        path.write_text(f"{more}\nHost *\n  IdentityFile {self.client_key}\n  IdentitiesOnly yes\n  IdentityAgent none\n")
        return path

    def start(self) -> Sshd:
        """Start it and wait until it listens. Raises RuntimeError with what it said instead."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"PasswordAuthentication {'yes' if self.password else 'no'}\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            f"PubkeyAuthentication {'no' if self.password else 'yes'}\n"
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}\nSubsystem sftp internal-sftp\n"
            f"ForceCommand {self._wrapper()}\n{self.more_config}\n"
        )
        said = self.folder / "sshd.log"
        before = said.stat().st_size if said.exists() else 0
        with said.open("ab") as log:
            command = [*self._own_shadow(), str(SSHD), "-D", "-e", "-f", str(config)]
            self.process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_LIMIT_S
        # Its own word, not an answering port: the one who answers there may be somebody else's server.
        while time.monotonic() < deadline and self.process.poll() is None:
            if b"Server listening on" in said.read_bytes()[before:]:
                return self
            time.sleep(0.02)
        raise RuntimeError(f"sshd did not start: {said.read_bytes()[before:][-500:]!r}")

    def stop(self) -> None:
        """Stop listening. Sessions that are open end with their connections."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(START_LIMIT_S)
            self.process = None

    def change_host_key(self) -> None:
        self.stop()
        make_key(self.host_key)
        self.start()

    def sessions(self) -> list[int]:
        """The processes that serve a connection. What they have to log is logged when they are gone."""
        assert self.process is not None
        return [pid for pid, found in proctable.snapshot().items() if found.ppid == self.process.pid]

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def _own_shadow(self) -> list[str]:
        """What the server is started with, so that it alone sees an account with the password."""
        if not self.password:
            return []
        hashed = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=self.password.encode(), capture_output=True, check=True
        )
        shadow = self.folder / "shadow"
        shadow.write_text(f"{getpass.getuser()}:{hashed.stdout.decode().strip()}:20000:0:99999:7:::\n")
        return ["unshare", "--mount", "sh", "-c", f'mount --bind {shadow} /etc/shadow && exec "$@"', "sh"]

    def _wrapper(self) -> Path:
        """Starts the login shell as sshd does (``shell -c COMMAND``), in the test's home: the account of the test's user
        has another home and shell, and is not ours to change."""
        path = self.folder / "login"
        noise = f"printf %s {shlex.quote(self.noise)}\n" if self.noise else ""
        extra = f"export PATH={shlex.quote(self.path)}\n" if self.path else ""
        extra += "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment.items())
        run = f'exec {self.shell} -c "$SSH_ORIGINAL_COMMAND"'
        path.write_text(f'#!/bin/sh\nexport HOME={self.home}\ncd "$HOME"\n{extra}{noise}{run}\n')
        path.chmod(0o755)
        return path
