"""Notes have several writers: people at consoles, people at editors, and the product. No line of theirs is lost."""

from __future__ import annotations

import functools
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import notes
from eagle3.runner.errors import VerbError
from eagle3.runner.folder_lock import locked
from eagle3.runner.merge import merge

Lines = st.lists(st.sampled_from(["a", "b", "c", "d", "", "e"]), max_size=8)


@given(base=Lines, mine=Lines)
def test_a_single_edit_is_taken_as_it_is(base: list[str], mine: list[str]) -> None:
    assert merge(base, base, mine) == (mine, 0)
    assert merge(base, mine, base) == (mine, 0)


@given(base=Lines, theirs=Lines, mine=Lines)
def test_no_line_that_either_side_wrote_is_lost(base: list[str], theirs: list[str], mine: list[str]) -> None:
    merged, _ = merge(base, theirs, mine)
    for side in (theirs, mine):
        assert {line for line in side if line not in base} <= set(merged)


def test_changes_in_different_places_are_both_taken() -> None:
    base = ["# Run", "one", "two", "three"]
    theirs = ["# Run", "one", "two", "three", "summary of attempt 1"]
    mine = ["# Run", "first, one", "two", "three"]
    assert merge(base, theirs, mine) == (["# Run", "first, one", "two", "three", "summary of attempt 1"], 0)


def test_two_changes_of_one_line_both_stay_and_are_counted() -> None:
    assert merge(["a", "x", "b"], ["a", "theirs", "b"], ["a", "mine", "b"]) == (["a", "theirs", "mine", "b"], 1)


def test_two_people_adding_at_the_end_both_stay() -> None:
    assert merge(["a"], ["a", "theirs"], ["a", "mine"])[0] == ["a", "theirs", "mine"]


def test_an_edit_from_an_old_base_keeps_what_was_written_meanwhile(tmp_path: Path) -> None:
    notes.append(tmp_path, "# Notes\n")
    base = notes.notes(tmp_path, "read", {})["text"]
    notes.append(tmp_path, "attempt 1 ended\n")
    answer = notes.notes(tmp_path, "write", {"base": base, "text": base + "the learning rate was wrong\n"})
    assert answer["text"] == "# Notes\nattempt 1 ended\nthe learning rate was wrong\n"
    assert answer["merged"] and answer["conflicts"] == 0
    assert (tmp_path / "NOTES.md").read_text() == answer["text"]


def _add(folder: Path, who: int) -> None:
    for n in range(20):
        if who % 2:
            notes.append(folder, f"line {n} of {who}\n")
        else:
            base = notes.notes(folder, "read", {})["text"]
            notes.write(folder, base, f"line {n} of {who}\n{base}")


def test_four_writers_at_once_lose_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody stands in line for the lock, and eighty writes on a slow disk may take longer than one writer waits.
    monkeypatch.setattr(notes, "locked", functools.partial(locked, wait_s=60.0))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(tmp_path, who)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines = (tmp_path / "NOTES.md").read_text().splitlines()
    assert sorted(lines) == sorted(f"line {n} of {who}" for who in range(4) for n in range(20))
    assert [path.name for path in tmp_path.iterdir()] == ["NOTES.md"]


def test_a_lock_that_a_dead_writer_left_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / ".NOTES.md.lock"
    lock.mkdir()
    os.utime(lock, (1, 1))
    notes.append(tmp_path, "x\n")
    assert (tmp_path / "NOTES.md").read_text() == "x\n"


def test_a_writer_that_does_not_let_go_is_named(tmp_path: Path) -> None:
    lock = tmp_path / ".NOTES.md.lock"
    lock.mkdir()
    now = lock.stat().st_mtime
    with (
        pytest.raises(VerbError, match="being written by somebody else"),
        locked(tmp_path, notes.NAME, clock=lambda: now, pause=lambda s: None),
    ):
        raise AssertionError("the lock was not ours")


def test_notes_that_are_too_long_are_not_saved_and_the_old_ones_stay(tmp_path: Path) -> None:
    notes.append(tmp_path, "kept\n")
    with pytest.raises(VerbError, match="were not saved"):
        notes.write(tmp_path, "kept\n", "x" * (notes.LIMIT_BYTES + 1))
    assert (tmp_path / "NOTES.md").read_text() == "kept\n"
    with pytest.raises(VerbError):
        notes.write(tmp_path / "gone", "", "x")


def test_a_last_line_without_an_end_is_not_joined_to_what_is_appended(tmp_path: Path) -> None:
    (tmp_path / "NOTES.md").write_text("half")
    notes.append(tmp_path, "next\n")
    assert (tmp_path / "NOTES.md").read_text() == "half\nnext\n"


def test_a_line_that_is_asked_for_twice_over_a_broken_link_stands_once(tmp_path: Path) -> None:
    notes.append(tmp_path, "# Notes\nwithout an end")
    line = "- 2026-11-30 10:00:00 ann: the learning\nrate was  wrong"
    first, again = (notes.notes(tmp_path, "append", {"line": line}) for _ in range(2))
    assert first["text"] == "# Notes\nwithout an end\n- 2026-11-30 10:00:00 ann: the learning rate was wrong\n"
    assert (again["text"], first["already"], again["already"]) == (first["text"], False, True)
    with pytest.raises(VerbError, match="The note is empty"):
        notes.notes(tmp_path, "append", {"line": " \n "})
