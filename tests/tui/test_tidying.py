"""What is loaded for the first picture, and when garbage is looked for."""

from __future__ import annotations

import subprocess
import sys

from tui.tidying import EVERY_S, QUIET_S, Tidy


def test_the_first_picture_waits_for_neither_the_spec_nor_the_plots_nor_the_link() -> None:
    words = "import sys, tui.launchpad, tui.catalog, tui.app, tui.connect; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    heavy = {"eagle3.core.spec", "eagle3.core.lineage", "remote.container", "asyncssh", "plotext", "tui.screens.run", "typer"}
    assert "tui.app" in loaded
    assert not heavy & set(loaded)


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
