"""The list of known runs survives, and a damaged one never stops the console."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from eagle3.core.readiness.report import Check, Report, concluded
from eagle3.core.records import RunSummary
from tui.catalog import MIGRATIONS, REPORTS_KEPT, Catalog, summaries


def summary(run_id: str, state: str = "running") -> RunSummary:
    return RunSummary(run_id=run_id, state=state)  # type: ignore[arg-type]


def test_runs_are_found_again_by_host_and_workspace(tmp_path: Path) -> None:
    path = tmp_path / "state" / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.save("box", "~/eagle3", [summary("a"), summary("b", "failed")], 100.0)
    catalog.save("other", "~/eagle3", [summary("c")], 100.0)
    catalog.close()
    again = Catalog(path)
    assert {run.run_id: (run.state, seen) for run, seen in summaries(again.runs("box", "~/eagle3"))} == {
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
    [(run, seen)] = summaries(catalog.runs("box", "w"))
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


def report(evidence: str = "37 GiB free") -> Report:
    check = Check(id="disk.free", group="disk", status="ok", title="Free space", evidence=evidence)
    return concluded([check], host="box", as_of=90.0, deep=False, about={"size": "pilot"})


def test_the_last_report_is_found_again_by_host_and_spec_with_its_ages(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    catalog = Catalog(path)
    catalog.save_report("box", "~/eagle3", "abc", report("older"), {"disk.free": 80.0}, 80.0)
    catalog.save_report("box", "~/eagle3", "abc", report(), {"disk.free": 99.0}, 100.0)
    catalog.close()
    again = Catalog(path)
    assert again.report("box", "~/eagle3", "abc") == (report(), {"disk.free": 99.0}, 100.0)
    for other in (("other", "~/eagle3", "abc"), ("box", "/data", "abc"), ("box", "~/eagle3", "abd")):
        assert again.report(*other) is None
    again.close()


def test_a_report_that_cannot_be_understood_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    catalog = Catalog(path)
    catalog.save_report("box", "w", "abc", report(), {}, 1.0)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE reports SET report = '[]'")
    assert catalog.report("box", "w", "abc") is None and catalog.problem == ""
    catalog.close()


def test_old_reports_of_a_host_go(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.sqlite")
    for number in range(REPORTS_KEPT + 3):
        catalog.save_report("box", "w", f"spec-{number}", report(), {}, float(number))
    assert catalog.report("box", "w", "spec-2") is None
    assert catalog.report("box", "w", "spec-3") is not None
    catalog.close()


def test_a_file_of_the_first_version_keeps_its_runs_and_takes_reports(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(MIGRATIONS[0])  # as it was before there were reports: no version either
        db.execute("INSERT INTO runs VALUES ('box', 'w', 'a', ?, 5.0)", (summary("a").model_dump_json(),))
    catalog = Catalog(path)
    assert catalog.problem == "" and [run.run_id for run, _ in summaries(catalog.runs("box", "w"))] == ["a"]
    catalog.save_report("box", "w", "abc", report(), {}, 1.0)
    assert catalog.report("box", "w", "abc") is not None
    catalog.close()


def test_a_file_of_a_newer_console_is_set_aside_whole(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript("CREATE TABLE runs (something TEXT); PRAGMA user_version = 99;")
    catalog = Catalog(path)
    assert "newer console" in catalog.problem and "set aside" in catalog.problem
    with sqlite3.connect(tmp_path / "c.sqlite.newer") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
    catalog.save("box", "w", [summary("a")], 1.0)
    assert len(catalog.runs("box", "w")) == 1
    catalog.close()
