"""The helper gets into the container whole, once, or not at all; and when it cannot, the reason is a sentence."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eagle3
from remote import installer
from remote.bootstrap import check_workspace, shell_path
from remote.bundle import bundle
from remote.container import Container, ContainerError, LinkError
from tests.remote.conftest import Open, Quick
from tests.support.proxy import FaultProxy
from tests.support.sshd import Sshd


def installed(lib: Path) -> list[str]:
    return sorted(path.name for path in lib.glob("*") if not path.name.startswith(".")) if lib.exists() else []


async def test_the_second_connect_uploads_nothing(bare_sshd: Sshd, quick: Quick, opened: Open) -> None:
    first = await opened(bare_sshd.url, settings=quick(bare_sshd))
    second = await opened(bare_sshd.url, settings=quick(bare_sshd))
    assert (first.uploads, second.uploads) == (1, 0)
    lib = bare_sshd.home / "eagle3" / "lib"
    assert installed(lib) == [bundle().version]
    assert (lib / bundle().version / "site" / "eagle3" / "presets" / "sizes" / "smoke.toml").is_file()
    assert list(lib.glob(".incoming*")) == []


async def test_an_interrupted_upload_leaves_nothing_that_looks_installed(
    bare_sshd: Sshd, quick: Quick, opened: Open, via: Callable[[int], str]
) -> None:
    lib = bare_sshd.home / "eagle3" / "lib"
    async with FaultProxy(bare_sshd.port) as proxy:
        proxy.abort_after_bytes = 60_000
        container = Container(via(proxy.port), settings=quick(bare_sshd, port=proxy.port))
        with pytest.raises(LinkError) as caught:
            await container.open()
        assert caught.value.kind == "lost"
        await container.close()
    assert installed(lib) == []
    container = await opened(bare_sshd.url, settings=quick(bare_sshd))
    assert container.uploads == 1
    assert installed(lib) == [bundle().version]


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
    assert list((tmp_path / "lib").iterdir()) == []


def test_a_disk_that_fills_up_while_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(installer, "sync", full)
    with pytest.raises(OSError, match="No space"):
        installer.install(request(tmp_path), io.BytesIO(bundle().payload))
    assert list((tmp_path / "lib").iterdir()) == []


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(installer.Refused) as caught:
        installer.install(request(tmp_path, unpacked_bytes=1 << 60), io.BytesIO(bundle().payload))
    assert caught.value.answer["code"] == "disk"
    assert "MiB free" in str(caught.value.answer["text"])
    assert list((tmp_path / "lib").iterdir()) == []


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


async def test_a_workspace_that_cannot_be_made_is_said_in_one_sentence(bare_sshd: Sshd, quick: Quick) -> None:
    (bare_sshd.home / "eagle3").write_text("a file")
    container = Container(bare_sshd.url, settings=quick(bare_sshd))
    with pytest.raises(ContainerError) as caught:
        await container.open()
    assert "in the way" in caught.value.text
    assert container.link.status == "down"
    await container.close()


def tools_without_python(folder: Path) -> Path:
    folder.mkdir()
    for name in ("sh", "bash", "env", "cat", "printf"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


async def test_a_container_without_python_says_so_and_starts_nothing(quick: Quick, tmp_path: Path) -> None:
    server = Sshd(tmp_path / "bare", path=str(tools_without_python(tmp_path / "bin"))).start()
    try:
        container = Container(server.url, python="python3-not-there", settings=quick(server))
        with pytest.raises(ContainerError) as caught:
            await container.open()
        await container.close()
    finally:
        server.stop()
    assert caught.value.code == "python"
    assert "There is no python3-not-there" in caught.value.text
    assert "python" in caught.value.remedy
    assert not (server.home / "eagle3").exists()


async def test_a_python_that_is_too_old_is_named_and_another_one_proposed(quick: Quick, tmp_path: Path) -> None:
    tools = tools_without_python(tmp_path / "bin")
    (tools / "python3").write_text("#!/bin/sh\necho 3.6\nexit 1\n")
    (tools / "python3").chmod(0o755)
    (tools / "python3.12").symlink_to(sys.executable)
    server = Sshd(tmp_path / "old", path=str(tools)).start()
    try:
        container = Container(server.url, settings=quick(server))
        with pytest.raises(ContainerError) as caught:
            await container.open()
        await container.close()
    finally:
        server.stop()
    assert caught.value.code == "python"
    assert "version 3.6" in caught.value.text
    assert "--python" in caught.value.remedy


async def test_an_account_that_runs_no_commands_is_told_apart(quick: Quick, tmp_path: Path) -> None:
    server = Sshd(tmp_path / "git", more_config="")
    server.start()
    (server.folder / "login").write_text("#!/bin/sh\necho 'This account is for git only.' >&2\nexit 1\n")
    try:
        container = Container(server.url, settings=quick(server))
        with pytest.raises(ContainerError) as caught:
            await container.open()
        await container.close()
    finally:
        server.stop()
    assert "This account is for git only." in caught.value.text


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
        answer = installer.install(request(tmp_path), io.BytesIO(bundle().payload))
    finally:
        process.kill()
        process.wait()
    assert answer["pruned"] == [finished.name]
    assert all(path.exists() for path in (running, launched, *newest, fresh))
    assert not stale.exists() and not finished.exists()


def test_the_version_is_the_contents(tmp_path: Path) -> None:
    source = Path(eagle3.__file__).parent
    copy = tmp_path / "eagle3"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    same = bundle(copy)
    assert same.version == bundle().version
    (copy / "journal.py").write_text((copy / "journal.py").read_text() + "# changed\n")
    bundle.cache_clear()
    assert bundle(copy).version != same.version


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
    assert runs_of(tmp_path / "a.pyz", byte_code, tmp_path) == {"runs": []}
    strange = {name: b"\0" * 4 + data[4:] if name.endswith(".pyc") else data for name, data in contents.items()}
    assert runs_of(tmp_path / "b.pyz", strange, tmp_path) == {"runs": []}


@pytest.mark.parametrize(
    ("given", "taken"), [("~/eagle3", "~/eagle3"), ("/data/e", "/data/e"), ("eagle3", "~/eagle3"), ("~", "~")]
)
def test_workspaces_are_absolute_or_under_the_home_there(given: str, taken: str) -> None:
    assert check_workspace(given) == taken


@pytest.mark.parametrize("given", ["", "~ada/eagle3"])
def test_other_workspaces_are_wrong_usage(given: str) -> None:
    with pytest.raises(ContainerError) as caught:
        check_workspace(given)
    assert caught.value.code == "usage"


def test_paths_keep_their_tilde_for_the_shell_there_and_nothing_else() -> None:
    assert shell_path("~/a b/$(x)") == "~/'a b/$(x)'"
    assert shell_path("/opt/py;x") == "'/opt/py;x'"


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish"])
@pytest.mark.parametrize("name", ["it's", "a!b", "back\\slash", "two\\\\", "$HOME `x` $(x) *", '"', "~", "-n", "{a,b}", "é"])
def test_a_path_means_the_same_to_every_login_shell(shell: str, name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [shell, "-c", f"printf %s {shell_path('~/' + name)}"], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True
    )
    assert done.stdout.decode() == f"{tmp_path}/{name}", done.stderr
