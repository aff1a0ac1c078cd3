"""A file that a server names is taken and removed only where that server was told to write; everything else stays as it is."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.runner.handed import Handed, NotItsFile, told_folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name in ("raw/1.safetensors", "raw/1.safetensors.lock", "precious.safetensors", "raw/notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    return folder


def everything(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_its_own_file_is_taken_once_the_lock_is_free_and_removed_with_it(raw: Path) -> None:
    its = Handed(raw, "The server")
    file = its.named(f"{raw}/1.safetensors")
    with (raw / "1.safetensors.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not its.there(file), "it is being written"
    assert its.there(file) and not its.there(its.named(f"{raw}/2.safetensors"))
    its.remove(file)
    assert sorted(path.name for path in raw.iterdir()) == ["notes.txt"]


def test_a_folder_that_is_itself_reached_by_a_link_is_the_same_folder(raw: Path) -> None:
    (raw.parent / "store").symlink_to(raw)
    assert Handed(raw.parent / "store", "The server").named(f"{raw}/1.safetensors") == raw / "1.safetensors"
    assert Handed(raw, "The server").named(f"{raw.parent}/store/1.safetensors") == raw / "1.safetensors"


@pytest.mark.parametrize(
    "handle",
    [
        "{raw}/../precious.safetensors", "{raw}/sub/../../precious.safetensors", "{out}/precious.safetensors", "/etc/passwd",
        "{raw}/notes.txt", "{raw}/.safetensors", "{raw}", "1.safetensors", "../precious.safetensors", "{raw}/1.safetensors\0",
        "", 7, None, ["{raw}/1.safetensors"], {}, "{raw}/\ud800.safetensors", "/\ud800/1.safetensors",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused_in_one_sentence_and_nothing_is_touched(raw: Path, handle: object) -> None:
    before = everything(raw.parent)
    named = handle.format(raw=raw, out=raw.parent) if isinstance(handle, str) else handle
    with pytest.raises(NotItsFile) as caught:
        Handed(raw, "The server", remedy="look at it").named(named)
    said = str(caught.value)
    assert said.startswith("The server names ") and said.endswith("it was neither read nor removed: look at it.")
    assert "\0" not in said and everything(raw.parent) == before


def link(file: Path) -> None:
    file.symlink_to(file.parent.parent / "precious.safetensors")


def hard_link(file: Path) -> None:
    os.link(file.parent.parent / "precious.safetensors", file)


def link_of_its_folder(file: Path) -> None:
    file.with_name("sub").symlink_to(file.parent.parent)


@pytest.mark.parametrize("make", [link, hard_link, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("place", ["2.safetensors", "2.safetensors.lock"])
def test_what_is_no_plain_file_of_its_own_is_refused_and_stays(raw: Path, place: str, make: Callable[[Path], None]) -> None:
    make(raw / place)
    its, before = Handed(raw, "The server"), everything(raw.parent) if make is not os.mkfifo else {}
    with pytest.raises(NotItsFile, match=r"which (is no plain file|has other names too); it was neither read nor removed"):
        its.there(raw / "2.safetensors")
    its.remove(raw / "2.safetensors")
    assert os.path.lexists(raw / place)
    assert make is os.mkfifo or everything(raw.parent) == before


def test_a_folder_that_was_swapped_for_a_link_leads_nowhere(raw: Path) -> None:
    link_of_its_folder(raw / "any")
    with pytest.raises(NotItsFile, match="which is not in"):
        Handed(raw, "The server").named(f"{raw}/sub/precious.safetensors")


def test_where_the_servers_own_folder_is_known_a_path_from_there_is_one_of_its_files(raw: Path) -> None:
    its = Handed(raw, "The server", cwd=str(raw.parent))
    assert its.named("raw/1.safetensors") == raw / "1.safetensors"
    for handle in ("precious.safetensors", "raw/../precious.safetensors", "raw/", ""):
        with pytest.raises(NotItsFile, match="neither read nor removed"):
            its.named(handle)


def test_a_name_that_no_disk_takes_is_refused_as_every_other(raw: Path) -> None:
    its = Handed(raw, "The server")
    with pytest.raises(NotItsFile, match=r"which cannot be looked at \(File name too long\); it was neither"):
        its.there(its.named(f"{raw}/{'a' * 250}.safetensors"))


def test_a_server_of_another_user_may_not_name_files_of_a_third(raw: Path) -> None:
    stranger = os.geteuid() + 1000
    its = Handed(raw, "The server", owner=stranger)
    with pytest.raises(NotItsFile, match=f"belongs to user {os.geteuid()} while the server runs as {stranger}"):
        its.there(raw / "1.safetensors")
    assert Handed(raw, "The server", owner=0).there(raw / "1.safetensors"), "root's files may be anybody's on shared disks"


def transfer(connector: str, **extra: object) -> str:
    return json.dumps({"kv_connector": connector} | ({"kv_connector_extra_config": extra} if extra else {}))


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--kv-transfer-config", transfer("ExampleHiddenStatesConnector")], "/tmp"),
        ([f"--kv_transfer_config={transfer('CpuHiddenStatesConnector', shared_storage_path='/s')}"], "/s"),
        ([f"--kv-transfer-config={transfer('XHiddenStates', shared_storage_path='s')}"], "/cwd/s"),
        ([f"--kv-transfer-config={transfer('XHiddenStates', shared_storage_path=7)}"], None),
        (["--kv-transfer-config", transfer("NixlConnector")], None),
        (["--kv-transfer-config", "{"], None),
        ([], None),
    ],
)
def test_the_folder_is_the_one_that_the_command_line_names(words: list[str], folder: str | None) -> None:
    assert told_folder(["vllm", "serve", "m", *words], "/cwd") == (Path(folder) if folder else None)
