"""A row is appended whole or not at all, and a torn end costs one row."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from eagle3.rows import append_row, read_rows, read_rows_past_torn, read_whole_rows


def test_a_row_that_finds_no_room_leaves_the_rows_before_it_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    append_row(file, {"n": 1})
    write = os.write

    def half(descriptor: int, content: memoryview) -> int:
        if len(content) <= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:4])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            append_row(file, {"n": 2})
    append_row(file, {"n": 3})
    assert read_rows(file) == [{"n": 1}, {"n": 3}]


def test_a_torn_end_is_cut_off_and_the_next_row_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"n":1}\n{"n":')
    assert read_whole_rows(file) == [{"n": 1}]
    append_row(file, {"n": 2})
    assert read_rows(file) == [{"n": 1}, {"n": 2}]


def test_half_a_line_within_a_journal_costs_that_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_rows_past_torn(file) == []
    file.write_bytes(b'{"n":1}\n{"n":\n[2]\n\xff\n{"n":3}\n{"n"')
    assert read_rows_past_torn(file) == [{"n": 1}, {"n": 3}]
    assert file.read_bytes().endswith(b'{"n"')
