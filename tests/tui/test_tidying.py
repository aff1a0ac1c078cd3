"""What is loaded for the first picture, and when garbage is looked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.core.records import RunSummary
from tests.tui.support.terminal import ended, on_terminal, read_until
from tui.catalog import Catalog
from tui.tidying import EVERY_S, QUIET_S, Tidy

LATE = {
    "asyncssh", "eagle3.core.lineage", "eagle3.core.records", "eagle3.core.spec", "hashlib", "plotext", "pydantic",
    "remote.container", "textual.widgets._text_area", "tomlkit", "tui.keeping", "tui.reading",
    "tui.screens.confirm", "tui.screens.run", "typer",
}  # fmt: skip
"""Loaded only after the first picture."""
AT_FIRST_PICTURE = """
import json, os, sys, textual.css.stylesheet as css, tui.start
from tui.terminal import TerminalApp
found, display, parse, read = sys.argv[1], TerminalApp._display, css.parse, []
def counted(scope, text, read_from, **more):
    read.append(str(read_from))
    return parse(scope, text, read_from, **more)
def first(app, screen, picture):
    display(app, screen, picture)
    with open(found, "w") as file:
        json.dump({"modules": list(sys.modules), "read": read}, file)
    os.write(1, b"that was it")
    os._exit(0)
css.parse, TerminalApp._display, sys.argv = counted, first, ["eagle3-tui", "--local"]
tui.start.main()
"""


def test_the_first_picture_waits_for_no_library_that_is_needed_later_and_reads_no_style_sheet_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "eagle3-console").mkdir()
    (tmp_path / "eagle3-console" / "settings.toml").write_text('theme = "paper"\n[alerts]\nbell = false\n')
    catalog = Catalog(tmp_path / "eagle3-console" / "catalog.sqlite")
    catalog.save("this machine", "~/eagle3", [RunSummary(run_id="seen-before")], 1.0)
    catalog.close()
    process, master = on_terminal('exec "$0" "$@"', tmp_path, "-c", AT_FIRST_PICTURE, str(tmp_path / "found.json"))
    with ended(process):
        read_until(master, b"that was it")
    found = json.loads((tmp_path / "found.json").read_text())
    assert "tui.screens.overview" in found["modules"] and not LATE & set(found["modules"])
    assert sum("console.tcss" in place for place in found["read"]) == 1, "all of ours is in it"


def test_everything_is_walked_over_only_where_no_key_was_pressed_lately() -> None:
    tidy = Tidy(0.0)
    assert not tidy.due(EVERY_S - 1), "too soon"
    tidy.key(EVERY_S)
    assert not tidy.due(EVERY_S + QUIET_S - 1), "somebody is at it"
    assert tidy.due(EVERY_S + QUIET_S)
    assert not tidy.due(EVERY_S + QUIET_S + 1), "once"


def test_what_is_loaded_is_left_out_and_a_full_walk_never_comes_by_itself() -> None:
    words = (
        "import gc; gc.disable(); from tui.tidying import keep_loaded; keep_loaded(); before = gc.get_stats()[2]['collections'];"
        "kept = [[n] for n in range(400_000)]; print(gc.isenabled(), gc.get_freeze_count() > 0,"
        " gc.get_stats()[2]['collections'] - before, gc.get_stats()[0]['collections'] > 0)"
    )
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == ["True", "True", "0", "True"]
