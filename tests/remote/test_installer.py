"""The installer in the container: whole, once, or not at all; what was damaged is put right; what is in use stays."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner.intact import damaged_in
from remote import installer
from remote.bundle import bundle
from remote.container import Container, LinkError
from tests.remote.conftest import Open, Quick
from tests.support.processes import begun
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd
from tests.support.tmpfs import on_tmpfs
from tests.support.waiting import until

VERSION = bundle().version


def request(workspace: Path, **changes: Any) -> dict[str, Any]:
    made = bundle()
    return {
        "workspace": str(workspace),
        "version": made.version,
        "sha256": made.sha256,
        "size": len(made.payload),
        "unpacked_bytes": made.unpacked_bytes,
        **changes,
    }


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: b""])
def test_a_payload_that_is_not_what_was_sent_is_dropped(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    with pytest.raises(installer.Refused):
        installer.install(request(tmp_path), io.BytesIO(harm(bundle().payload)))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(installer, "sync", full)
    with pytest.raises(OSError, match="No space"):
        installer.install(request(tmp_path), io.BytesIO(bundle().payload))
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(installer.Refused) as caught:
        installer.install(request(tmp_path, unpacked_bytes=1 << 60), io.BytesIO(bundle().payload))
    assert caught.value.answer["code"] == "disk"
    assert "MiB free" in str(caught.value.answer["text"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.EROFS, "disk", "read-only"),
        (errno.ENOENT, "failed", "No folder can be made at"),
        (errno.ENOSPC, "disk", "full"),
        (errno.EDQUOT, "disk", "quota"),
        (errno.EACCES, "permission", "cannot be written"),
        (errno.ENOTDIR, "failed", "in the way"),
    ],
)
def test_what_the_disk_says_becomes_a_sentence(number: int, code: str, words: str) -> None:
    answer = installer.explain(OSError(number, os.strerror(number), "/home/ada/eagle3"))
    assert answer["code"] == code
    assert words in answer["text"] and "/home/ada/eagle3" in answer["text"]
    assert answer["remedy"].endswith(".")


def make_version(lib: Path, name: str, age_s: float) -> Path:
    folder = lib / name
    folder.mkdir(parents=True)
    (folder / "runner.pyz").touch()
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def test_old_versions_go_unless_something_uses_them(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    running, launched, finished = (make_version(lib, f"v{number}", 5000 + number) for number in range(3))
    newest = [make_version(lib, f"new{number}", number) for number in range(2)]
    stale = make_version(lib, ".incoming-stale", 9000)
    fresh = make_version(lib, ".incoming-fresh", 10)
    for name, version, ended in (("a", launched, False), ("b", finished, True)):
        attempt = tmp_path / "runs" / name / "attempts" / "1"
        attempt.mkdir(parents=True)
        (attempt.parent.parent / "launch.json").write_text(json.dumps({"pythonpath": str(version / "site")}))
        if ended:
            (attempt / "exit.json").write_text("{}")
    process = subprocess.Popen(["tail", "-f", str(running / "runner.pyz")])
    try:
        begun(process)
        answer = installer.install(request(tmp_path), io.BytesIO(bundle().payload))
    finally:
        process.kill()
        process.wait()
    assert answer["pruned"] == [finished.name]
    assert all(path.exists() for path in (running, launched, *newest, fresh))
    assert not stale.exists() and not finished.exists()


def runs_of(archive: Path, contents: dict[str, bytes], workspace: Path) -> object:
    """What the helper packed from ``contents`` says of the workspace, on nothing but the standard library."""
    with zipfile.ZipFile(archive, "w") as packed:
        for name, data in contents.items():
            packed.writestr(name, data)
    command = [sys.executable, "-I", "-S", str(archive), "list", str(workspace)]
    return json.loads(subprocess.run(command, capture_output=True, cwd="/", check=True).stdout)


def test_the_helper_runs_from_its_byte_code_and_from_its_sources_where_python_is_another(tmp_path: Path) -> None:
    answer = installer.install(request(tmp_path), io.BytesIO(bundle().payload))
    with zipfile.ZipFile(Path(answer["path"]) / "runner.pyz") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    byte_code = {name: data for name, data in contents.items() if name.endswith(".pyc") or name == "__main__.py"}
    assert runs_of(tmp_path / "a.pyz", byte_code, tmp_path) == {"runs": [], "watchers": []}
    strange = {name: b"\0" * 4 + data[4:] if name.endswith(".pyc") else data for name, data in contents.items()}
    assert runs_of(tmp_path / "b.pyz", strange, tmp_path) == {"runs": [], "watchers": []}


def as_sent(workspace: Path, **changes: Any) -> bytes:
    """What the console sends on stdin after the installer itself."""
    return json.dumps({**request(workspace, **changes), "marker": "@mark@"}).encode() + b"\n" + bundle().payload


def answer_of(out: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.decode().partition("@mark@")[2])
    return found


FAULTY = """
import os, signal
from remote import installer
count, whole = 0, installer.sync
def faulty(path):
    global count
    count += 1
    whole(path)
    if count == {dies_at}:
        os.kill(os.getpid(), signal.SIGKILL)
installer.sync = faulty
installer.main()
print(count)
"""


def killed_at(workspace: Path, sync: int) -> subprocess.CompletedProcess[bytes]:
    """An installation that is killed right after so many things have been put on the disk; 0: never."""
    command = [sys.executable, "-c", FAULTY.format(dies_at=sync)]
    return subprocess.run(command, input=as_sent(workspace), capture_output=True, cwd=Path(installer.__file__).parents[1])


def test_an_installer_that_is_killed_leaves_nothing_or_everything(tmp_path: Path) -> None:
    syncs = int(killed_at(tmp_path / "whole", 0).stdout.split()[-1])
    assert syncs > 50
    for number, there in ((1, False), (syncs // 2, False), (syncs - 1, False), (syncs, True)):
        workspace = tmp_path / str(number)
        assert killed_at(workspace, number).returncode == -signal.SIGKILL
        assert (workspace / "lib" / VERSION).exists() is there
        answer = installer.install(request(workspace), io.BytesIO(bundle().payload))
        assert answer["already"] is there
        assert damaged_in(workspace / "lib" / VERSION) == []


async def test_an_upload_that_is_cut_anywhere_leaves_nothing_or_everything(
    quick: Quick, tmp_path: Path, via: Callable[[int], str]
) -> None:
    server = Sshd(tmp_path / "sshd").start()
    lib = server.home / "eagle3" / "lib"
    cuts: list[str] = []
    try:
        async with FaultProxy(server.port) as proxy:
            settings = quick(server, port=proxy.port)
            for part in (0.02, 0.06, 0.3, 0.7, 0.97, 1.0):
                # The first bytes are the login and the look for a Python, the last ones the end of the payload.
                happened = proxy.cut("to_server", int(part * len(bundle().payload)))
                container = Container(via(proxy.port), settings=settings)
                with pytest.raises(LinkError) as caught:
                    await container.open()
                await container.close()
                assert happened.is_set()
                cuts.append(caught.value.kind)
                # One look: an installer that only now reads of its end still makes a folder and removes it.
                await until(lambda: [*lib.glob("*")] == [], "the installer to have tidied up, and nothing to be installed")
            container = Container(via(proxy.port), settings=settings)
            await container.open()
            await container.close()
        assert container.uploads == 1
        assert damaged_in(lib / VERSION) == []
        assert len(cuts) == 6 and "lost" in cuts, cuts
    finally:
        server.stop()


async def test_consoles_that_come_at_once_install_once(bare_sshd: Sshd, quick: Quick, opened: Open) -> None:
    settings = quick(bare_sshd)
    consoles = await asyncio.gather(*(opened(bare_sshd.url, settings=settings) for _ in range(3)))
    assert sum(console.uploads for console in consoles) == 1
    lib = bare_sshd.home / "eagle3" / "lib"
    assert [path.name for path in lib.iterdir()] == [VERSION]
    assert damaged_in(lib / VERSION) == []
    assert [await console.runs() for console in consoles] == [[], [], []]


def lose(version: Path) -> None:
    (version / "site" / "eagle3" / "work.py").unlink()


def flip(version: Path) -> None:
    path = version / "site" / "eagle3" / "presets" / "sizes" / "smoke.toml"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def truncate(version: Path) -> None:
    (version / "runner.pyz").write_bytes((version / "runner.pyz").read_bytes()[:5000])


def forget(version: Path) -> None:
    (version / installer.MANIFEST).unlink()


def empty(version: Path) -> None:
    for path in version.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


@pytest.mark.parametrize("harm", [lose, flip, truncate, forget, empty])
async def test_a_damaged_installation_is_put_right_at_the_next_connect(
    sshd: Sshd, quick: Quick, opened: Open, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    version = sshd.home / "eagle3" / "lib" / VERSION
    # The seed's files are links to one copy for all tests.
    for path in [path for path in version.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    live = await opened(sshd.url, settings=quick(sshd))
    assert live.uploads == 0
    harm(version)
    assert damaged_in(version) != []
    second = await opened(sshd.url, settings=quick(sshd))
    assert second.uploads == 1
    assert damaged_in(version) == []
    third = await opened(sshd.url, settings=quick(sshd))
    assert third.uploads == 0
    assert await live.runs() == await second.runs() == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [("size=4m", "disk", "MiB free"), ("size=64m,nr_inodes=200", "disk", "files more"), ("size=64m", "disk", "is read-only")],
)
def test_a_place_that_cannot_hold_it_is_said_before_anything_is_written(
    tmp_path: Path, options: str, code: str, words: str
) -> None:
    disk = tmp_path / "disk"
    count = [sys.executable, "-c", "import os, sys; print(len(os.listdir(sys.argv[1])))", str(disk)]
    script = 'python=$1; installer=$2; shift 2; "$python" -I -S "$installer"; exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, installer.__file__, *count]
    done = on_tmpfs(disk, options, command, stdin=as_sent(disk / "home" / "eagle3"), read_only=words == "is read-only")
    answer, _, entries = done.stdout.decode().rpartition("\n")[0].rpartition("\n")
    found = answer_of(answer.encode())
    assert (found["ok"], found["code"]) == (False, code), done
    assert words in found["text"] and str(disk) in found["text"] and found["remedy"]
    assert entries == "0"


def test_a_quota_that_is_used_up_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """statvfs does not know of quotas: only taking the room tells. The kernel's answer is put in its place here."""

    def over_quota(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path))

    monkeypatch.setattr(os, "posix_fallocate", over_quota)
    with pytest.raises(OSError) as caught:
        installer.install(request(tmp_path / "a" / "b"), io.BytesIO(bundle().payload))
    assert "quota is used up" in installer.explain(caught.value)["text"]
    assert [*tmp_path.iterdir()] == []


async def test_a_helper_that_others_use_is_not_pruned_however_old_its_version_is(sshd: Sshd, quick: Quick, opened: Open) -> None:
    live = await opened(sshd.url, settings=quick(sshd))
    lib = sshd.home / "eagle3" / "lib"
    os.utime(lib / VERSION, (1.0, 1.0))
    for number in range(3):
        make_version(lib, f"new{number}", number)
    unused = make_version(lib, "old", 5000)
    other = request(sshd.home / "eagle3", version="another")
    answer = installer.install(other, io.BytesIO(bundle().payload))
    assert answer["pruned"] == ["new2", unused.name]
    assert await live.runs() == []
