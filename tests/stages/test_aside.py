"""What a stage does beside waiting: it fails as early as it would have, and is there when it is needed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from eagle3.stages.aside import Aside, import_aside
from tests.support.waiting import until


def test_what_was_made_beside_is_waited_for() -> None:
    may = threading.Event()
    made = Aside(lambda: may.wait(30) and "made")
    made.check()
    may.set()
    assert made.result() == "made"
    made.check()


def test_a_failure_beside_is_raised_at_the_next_look_and_where_the_result_is_wanted() -> None:
    def fails() -> None:
        raise ValueError("no tokenizer")

    made = Aside(fails)
    with pytest.raises(ValueError, match="no tokenizer"):
        made.result()
    with pytest.raises(ValueError, match="no tokenizer"):
        made.check()


async def test_modules_are_imported_beside_and_one_that_cannot_be_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole_and_beside.py").write_text("answer = 42\n")
    (tmp_path / "broken_and_beside.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_aside("broken_and_beside", "not_there_and_beside", "whole_and_beside")
    await until(lambda: getattr(sys.modules.get("whole_and_beside"), "answer", None) == 42, "the import")
