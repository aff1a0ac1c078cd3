"""Files of a run are written so that no reader sees half of one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import rundir
from eagle3.runner.errors import VerbError

TEXT = st.text(st.characters(), max_size=9000)


def test_a_reader_sees_the_old_or_the_new_file_and_no_temporary_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    rundir.write_json(path, {"n": 0, "pad": "x" * 50_000})
    done = threading.Event()

    def write() -> None:
        for n in range(200):
            rundir.write_json(path, {"n": n, "pad": "x" * 50_000}, durable=False)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert len(json.loads(path.read_text())["pad"]) == 50_000
    writer.join()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    rundir.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        rundir.write_json(tmp_path / "a.json", object())
    (tmp_path / "folder.json" / "x").mkdir(parents=True)
    with pytest.raises(OSError):
        rundir.write_json(tmp_path / "folder.json", 1)
    assert rundir.read_json(tmp_path / "a.json") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "folder.json"]


def test_what_is_missing_or_no_json_reads_as_the_default(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    (tmp_path / "list.json").write_text("[1]")
    assert rundir.read_json(tmp_path / "none.json", "d") == rundir.read_json(tmp_path / "bad.json", "d") == "d"
    assert rundir.read_object(tmp_path / "list.json") == {}


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    rundir.write_json(tmp_path / "a.json", {"loss": float("nan"), "rows": [float("inf"), 1.5]})
    assert rundir.read_json(tmp_path / "a.json") == {"loss": None, "rows": [None, 1.5]}


@given(st.dictionaries(st.sampled_from(["text", "detail", "actor", "kind"]), TEXT), st.booleans())
def test_every_line_is_whole_json_of_at_most_4096_bytes(
    tmp_path_factory: pytest.TempPathFactory, row: dict[str, str], torn: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "e.jsonl"
    if torn:
        path.write_text('{"half": "a li')
    rundir.append_line(path, {"v": 1, **row})
    before = path.stat().st_size
    rundir.append_line(path, {"v": 2})
    assert before <= rundir.MAX_LINE_BYTES + (14 if torn else 0)
    lines = path.read_bytes().decode("utf-8").split("\n")
    found: dict[str, Any] = json.loads(lines[-3])
    assert found["v"] == 1 and json.loads(lines[-2]) == {"v": 2} and lines[-1] == ""
    for key, value in row.items():
        kept = found[key].encode("utf-8", "backslashreplace").decode()
        whole = value.encode("utf-8", "backslashreplace").decode()
        assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))


def test_the_detail_is_cut_before_the_text(tmp_path: Path) -> None:
    rundir.append_line(tmp_path / "e.jsonl", {"text": "t" * 3000, "detail": "d" * 3000})
    row = rundir.read_json(tmp_path / "e.jsonl")
    assert row["text"] == "t" * 3000 and row["detail"].endswith("…") and len(row["detail"]) > 900


def test_a_row_of_numbers_too_long_for_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        rundir.append_line(tmp_path / "m.jsonl", {"loss_pos": list(range(3000))})
    assert not (tmp_path / "m.jsonl").exists()


def test_concurrent_writers_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"

    def write(n: int) -> None:
        for _ in range(50):
            rundir.append_line(path, {"n": n, "text": str(n) * 2000})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Of two at the same moment one may take the other's for torn and close it, which leaves an empty line.
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert len(rows) == 200 and all(set(row["text"]) == {str(row["n"])} for row in rows)


def test_files_take_the_groups_rights_from_their_folder(tmp_path: Path) -> None:
    for mode, expected in ((0o700, 0o600), (0o770, 0o660)):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        folder.chmod(mode)
        rundir.write_json(folder / "a.json", 1)
        rundir.append_line(folder / "b.jsonl", {})
        assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {expected}


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("")
    (tmp_path / "e.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        rundir.append_line(tmp_path / "e.jsonl", {"a": 1})
    assert (tmp_path / "victim").read_text() == ""


def test_a_claim_has_one_winner(tmp_path: Path) -> None:
    assert [rundir.claim(tmp_path / "c") for _ in range(3)] == [True, False, False]
    with pytest.raises(OSError):
        rundir.claim(tmp_path / "none" / "c")


def test_paths_stay_in_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rundir.run_path("~/ws", "a-1") == tmp_path / "ws/runs/a-1"
    (tmp_path / "ws/runs").mkdir(parents=True)
    (tmp_path / "ws/runs/a-1").symlink_to(os.sep)
    for bad in ("a-1", "..", "a/b", "", "A"):
        with pytest.raises(VerbError):
            rundir.run_path("~/ws", bad)
    for bad in ("", "~no-such-user/x", "a\0b"):
        with pytest.raises(VerbError):
            rundir.workspace_path(bad)
    assert rundir.runs("~/ws") == [] == rundir.runs("~/none")
