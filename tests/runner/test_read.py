"""A reader gets every byte of a growing file once, in whole lines, and learns when the file became another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import increments, verbs
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from tests.runner.support import shell, wait_end


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "runs" / "r"
    place.mkdir(parents=True)
    return place


def read(
    run_dir: Path, token: Any = None, name: str = "f", max_bytes: int = 1000, whole: bool = False, ended: bool = False
) -> dict[str, Any]:
    return increments.read(run_dir, name, token, max_bytes, whole, ended)


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_only_what_is_new_comes_and_a_half_line_is_held_back(run_dir: Path) -> None:
    append(run_dir / "f", b"one\ntw")
    first = read(run_dir)
    assert (first["text"], first["reset"], first["missing"], first["more"]) == ("one\n", False, False, False)
    assert read(run_dir, first["token"])["text"] == ""
    append(run_dir / "f", b"o\n")
    second = read(run_dir, first["token"])
    assert (second["text"], second["reset"]) == ("two\n", False)


def test_a_truncated_file_begins_anew(run_dir: Path) -> None:
    append(run_dir / "f", b"one\ntwo\n")
    token = read(run_dir)["token"]
    os.truncate(run_dir / "f", 0)
    append(run_dir / "f", b"x\n")
    again = read(run_dir, token)
    assert (again["text"], again["reset"]) == ("x\n", True)


def test_a_replaced_file_begins_anew_even_on_the_same_inode(run_dir: Path) -> None:
    append(run_dir / "f", b"one\n")
    token = read(run_dir)["token"]
    (run_dir / "f").write_bytes(b"two\nthree\n")
    again = read(run_dir, token)
    assert (again["text"], again["reset"]) == ("two\nthree\n", True)
    (run_dir / "g").write_bytes(b"two\nthree\nfour\n")
    (run_dir / "g").replace(run_dir / "f")
    assert read(run_dir, again["token"])["reset"]


def test_a_missing_file_is_said_to_be_missing_and_one_that_vanished_resets(run_dir: Path) -> None:
    assert read(run_dir) == {"text": "", "token": None, "reset": False, "missing": True, "more": False}
    append(run_dir / "f", b"one\n")
    token = read(run_dir)["token"]
    (run_dir / "f").unlink()
    gone = read(run_dir, token)
    assert gone["missing"] and gone["reset"]


def test_a_line_longer_than_a_reply_comes_in_pieces_of_whole_characters(run_dir: Path) -> None:
    append(run_dir / "f", "äöü€😀".encode() * 5 + b"\nend\n")
    token = None
    texts: list[str] = []
    while not texts or texts[-1]:
        found = read(run_dir, token, max_bytes=7)
        token = found["token"]
        texts.append(found["text"])
    assert "".join(texts) == "äöü€😀" * 5 + "\nend\n"


def test_bytes_that_are_no_text_do_not_stop_the_reader(run_dir: Path) -> None:
    append(run_dir / "f", b"\xff\xfe\x00ok\n" + b"\x80" * 20)
    first = read(run_dir, max_bytes=8)
    assert first["text"] == "��\x00ok\n"
    token, total = first["token"], 0
    while chunk := read(run_dir, token, max_bytes=8):
        token = chunk["token"]
        total += len(chunk["text"])
        if not chunk["more"]:
            break
    assert total >= 16


def test_the_last_half_line_of_a_log_comes_when_the_run_has_ended(run_dir: Path) -> None:
    append(run_dir / "server.log", b"one\nlast words")
    append(run_dir / "rows.jsonl", b'{"a":1}\n{"b"')
    assert read(run_dir, name="server.log")["text"] == "one\n"
    assert read(run_dir, name="server.log", ended=True)["text"] == "one\nlast words"
    assert read(run_dir, name="rows.jsonl", ended=True)["text"] == '{"a":1}\n'


def test_a_whole_file_comes_whole(run_dir: Path) -> None:
    (run_dir / "f").write_text('{"a": 1}')
    assert read(run_dir, whole=True, max_bytes=2)["text"] == '{"a": 1}'
    os.truncate(run_dir / "f", increments.LIMIT_BYTES + 1)
    with pytest.raises(VerbError, match="too long"):
        read(run_dir, whole=True)


PIECE = st.one_of(st.binary(max_size=40), st.text(alphabet="ab€😀\n\r", max_size=30).map(str.encode), st.just(b"\n"))


@given(st.lists(st.tuples(PIECE, st.integers(1, 50)), max_size=20))
def test_whatever_is_appended_and_however_it_is_read_every_byte_comes_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, int]]
) -> None:
    run_dir = tmp_path_factory.mktemp("runs") / "r"
    run_dir.mkdir()
    written, offset, token = b"", 0, None
    for piece, max_bytes in [*steps, (b"\n", 50)]:
        append(run_dir / "f", piece)
        written += piece
        while True:
            found = read(run_dir, token, max_bytes=max_bytes)
            token = found["token"]
            assert not found["reset"] and offset <= token["offset"] <= len(written)
            assert found["text"] == written[offset : token["offset"]].decode("utf-8", "replace")
            assert token["offset"] - offset <= max_bytes
            offset = token["offset"]
            if not found["more"]:
                break
        held_back = written[offset:]
        assert b"\n" not in held_back and len(held_back) < max(max_bytes, 1)


@given(
    st.one_of(
        st.none(),
        st.text(),
        st.dictionaries(st.sampled_from(["dev", "ino", "offset", "hash"]), st.one_of(st.integers(), st.text())),
    )
)
def test_a_token_that_is_none_of_ours_begins_anew(tmp_path_factory: pytest.TempPathFactory, token: Any) -> None:
    run_dir = tmp_path_factory.mktemp("runs") / "r"
    run_dir.mkdir()
    append(run_dir / "f", b"one\n")
    found = read(run_dir, token)
    assert found["text"] == "one\n" and found["reset"] == (token is not None)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", ".", "link/passwd", "\0", "dir", "pipe"])
def test_names_stay_in_the_run_directory(run_dir: Path, name: str) -> None:
    (run_dir / "link").symlink_to("/etc")
    (run_dir / "dir").mkdir()
    os.mkfifo(run_dir / "pipe")
    with pytest.raises(VerbError) as caught:
        read(run_dir, name=name)
    assert caught.value.code == "usage"


def test_a_link_is_not_followed(run_dir: Path) -> None:
    (run_dir / "f").symlink_to("/etc/passwd")
    with pytest.raises(VerbError):
        read(run_dir)


def test_one_question_brings_the_state_and_many_files(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "x = 1\n", shell("echo attempt $EAGLE3_ATTEMPT"))["run_dir"])
    wait_end(run_dir)
    files: list[dict[str, Any]] = [
        {"name": "run.log"},
        {"name": "events.jsonl"},
        {"name": "launch.json", "whole": True},
        {"name": "result.json"},
    ]
    first = verbs.handle("read", {"workspace": str(workspace), "run_id": "r", "files": files})
    assert first["summary"]["state"] == "finished"
    assert first["files"]["run.log"]["text"] == "attempt 1\n"
    assert "attempt_ended" in first["files"]["events.jsonl"]["text"] and first["files"]["result.json"]["missing"]
    launch(workspace, "r", "", {}, resume=True)
    wait_end(run_dir, 2)
    token = first["files"]["run.log"]["token"]
    again = verbs.handle("read", {"workspace": str(workspace), "run_id": "r", "files": [{"name": "run.log", "token": token}]})
    assert again["files"]["run.log"]["reset"] and again["files"]["run.log"]["text"] == "attempt 2\n"
