"""The helper gets into the container whole, once, or not at all; and when it cannot, the reason is a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eagle3
from remote.bootstrap import check_workspace, shell_path
from remote.bundle import bundle
from remote.container import Container, ContainerError
from tests.remote.conftest import Open, Quick
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


def test_the_version_is_the_contents(tmp_path: Path) -> None:
    source = Path(eagle3.__file__).parent
    copy = tmp_path / "eagle3"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    same = bundle(copy)
    assert same.version == bundle().version
    (copy / "journal.py").write_text((copy / "journal.py").read_text() + "# changed\n")
    bundle.cache_clear()
    assert bundle(copy).version != same.version


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
