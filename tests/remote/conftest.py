"""Two containers to test against: a real OpenSSH server and the embedded one."""

from __future__ import annotations

import asyncio
import getpass
import io
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from eagle3.core.presets import resolve
from eagle3.core.spec import RunSpec
from remote import installer
from remote.bundle import bundle
from remote.container import Container, Settings
from tests.support.sshd import Sshd

FAKE_WORKER = Path(__file__).parent.parent / "support" / "fake_worker.py"

Quick = Callable[..., Settings]
Open = Callable[..., Awaitable[Container]]


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts the helper into a workspace, as an earlier connect would have left it, and gives the workspace back."""
    made = bundle()
    workspace = tmp_path_factory.mktemp("seed")
    request = {
        "workspace": str(workspace),
        "version": made.version,
        "sha256": made.sha256,
        "size": len(made.payload),
        "unpacked_bytes": made.unpacked_bytes,
    }
    installed = Path(installer.install(request, io.BytesIO(made.payload))["path"])

    def copy(workspace: Path) -> Path:
        shutil.copytree(installed, workspace / "lib" / made.version, copy_function=os.link)
        return workspace

    return copy


@pytest.fixture
def bare_sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server that nobody has connected to."""
    server = Sshd(tmp_path / "sshd").start()
    yield server
    server.stop()


@pytest.fixture
def sshd(bare_sshd: Sshd, seed: Callable[[Path], Path]) -> Sshd:
    """A server with the helper in the default workspace."""
    seed(bare_sshd.home / "eagle3")
    return bare_sshd


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    """Settings with short limits and everything in the test's folder; ``trust`` puts the server's key in
    known_hosts, under ``port`` where a proxy stands before it."""

    def make(server: Sshd | None = None, *, port: int = 0, trust: bool = True, more_config: str = "", **changes: Any) -> Settings:
        known, config = tmp_path / "known_hosts", tmp_path / "ssh_config"
        if server is not None:
            server.write_client_config(config, more_config)
        if server is not None and trust:
            known.write_text(f"[127.0.0.1]:{port or server.port} {server.public_key()}\n")
        defaults: dict[str, Any] = {
            "connect_limit_s": 15,
            "ping_every_s": 0.3,
            "ping_limit_s": 1.0,
            "backoff_first_s": 0.1,
            "backoff_most_s": 0.3,
        }
        return Settings(**{**defaults, "state_dir": tmp_path / "state", "ssh_config": config, "known_hosts": known, **changes})

    return make


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Open]:
    """Open a container; it is closed at the end of the test."""
    containers: list[Container] = []

    async def open_(host: str = "", **options: Any) -> Container:
        container = Container(host, **options)
        containers.append(container)
        await container.open()
        return container

    yield open_
    await asyncio.gather(*(container.close() for container in containers))


@pytest.fixture
def spec() -> RunSpec:
    """A run whose worker is the fake one."""
    return resolve("smoke", "smollm2-135m", "cpu", {"worker_python": str(FAKE_WORKER), "grace_s": 5})


@pytest.fixture
def via() -> Callable[[int], str]:
    """The URL of a port on loopback."""
    return lambda port: f"ssh://{getpass.getuser()}@127.0.0.1:{port}"
