"""The list of known runs survives, and a damaged one never stops the console."""

from __future__ import annotations

from pathlib import Path

from eagle3.core.records import RunSummary
from tui.catalog import Catalog


def summary(run_id: str, state: str = "running") -> RunSummary:
    return RunSummary(run_id=run_id, state=state)  # type: ignore[arg-type]


def test_runs_are_found_again_by_host_and_workspace(tmp_path: Path) -> None:
    path = tmp_path / "state" / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.save("box", "~/eagle3", [summary("a"), summary("b", "failed")], 100.0)
    catalog.save("other", "~/eagle3", [summary("c")], 100.0)
    catalog.close()
    again = Catalog(path)
    assert {run.run_id: (run.state, seen) for run, seen in again.runs("box", "~/eagle3")} == {
        "a": ("running", 100.0),
        "b": ("failed", 100.0),
    }
    assert again.runs("box", "/data") == []
    assert again.problem == ""
    again.close()


def test_a_newer_word_on_a_run_replaces_the_older(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.sqlite")
    catalog.save("box", "w", [summary("a")], 100.0)
    catalog.save("box", "w", [summary("a", "finished")], 200.0)
    [(run, seen)] = catalog.runs("box", "w")
    assert (run.state, seen) == ("finished", 200.0)
    catalog.close()


def test_a_damaged_file_is_set_aside_with_a_message_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"this is no database" * 100)
    catalog = Catalog(path)
    assert "set aside" in catalog.problem
    assert (tmp_path / "c.sqlite.damaged").read_bytes().startswith(b"this is no database")
    catalog.save("box", "w", [summary("a")], 1.0)
    assert len(catalog.runs("box", "w")) == 1
    catalog.close()


def test_where_nothing_can_be_kept_the_console_still_has_a_list(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    catalog = Catalog(blocker / "c.sqlite")
    assert "lasts until you quit" in catalog.problem
    catalog.save("box", "w", [summary("a")], 1.0)
    assert len(catalog.runs("box", "w")) == 1
    catalog.close()


def test_two_consoles_share_the_file(tmp_path: Path) -> None:
    first, second = Catalog(tmp_path / "c.sqlite"), Catalog(tmp_path / "c.sqlite")
    first.save("box", "w", [summary("a")], 1.0)
    second.save("box", "w", [summary("b")], 1.0)
    assert len(first.runs("box", "w")) == 2
    first.close()
    second.close()
