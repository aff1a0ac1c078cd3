"""What an operator chooses once: settings, keys, themes, ASCII, read-only; mistakes are told and never end the console."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.core.records import Disk, MetricRow, RunSummary
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui import keymap
from tui.alerting import Alert, is_quiet, of_disks, of_link, of_runs, quiet_span, since_words
from tui.calling import Caller
from tui.catalog import Catalog
from tui.exporting import tables_of
from tui.launchpad import chosen
from tui.settings import AlertSettings, Settings, SettingsError, load
from tui.themes.filters import ascii_of
from tui.themes.palette import PALETTES


def settings_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml") == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theme = 'pink'", "theme in"),
        ("colour = 1", "there is no such field"),
        ("[alerts]\nbel = true", "the nearest is alerts.bell"),
        ("ascii = 'maybe'", "write true or false"),
        ("ascii = 2", "write true or false"),
        ("poll_s = 0", "write seconds from 0.5 to 600"),
        ("poll_s = nan", "write seconds from 0.5 to 600"),
        ("poll_s = 'soon'", "write seconds from 0.5 to 600"),
        ("[alerts]\nquiet_hours = '25:00-07:00'", "write quiet hours as"),
        ("[alerts]\nkinds = ['fire']", "there is no alert 'fire'"),
        ("= broken", "is not TOML"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_defaults_hold(tmp_path: Path, text: str, words: str) -> None:
    path = settings_file(tmp_path, text)
    with pytest.raises(SettingsError, match=words):
        load(path)
    settings, problem = chosen(path, {"ascii": True, "theme": ""})
    assert settings == Settings(ascii=True) and words in problem


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("poll_s = 7", Settings(poll_s=7.0)),
        ("poll_s = '2.5'", Settings(poll_s=2.5)),
        ("ascii = 'yes'\nread_only = 1\nreduced_motion = 'off'", Settings(ascii=True, read_only=True)),
        ("[alerts]\nbell = 0\ncommand = ['a', 'b']", Settings(alerts=AlertSettings(bell=False, command=("a", "b")))),
        ("[alerts]\nkinds = []", Settings(alerts=AlertSettings(kinds=()))),
    ],
)
def test_what_was_taken_before_is_taken_still(tmp_path: Path, text: str, settings: Settings) -> None:
    assert load(settings_file(tmp_path, text)) == settings


def test_a_key_is_changed_in_the_one_table_and_never_means_two_things() -> None:
    table = keymap.rebound(keymap.KEYS, {"run.stop": "x"})
    assert next(key.keys for key in table if key.action == "stop") == "x"
    with pytest.raises(keymap.RebindError, match=r"no key to change called 'run\.jump'"):
        keymap.rebound(keymap.KEYS, {"run.jump": "x"})
    with pytest.raises(keymap.RebindError, match="'q' would mean both"):
        keymap.rebound(keymap.KEYS, {"run.stop": "q"})


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("x", "x"),
        ("?", "question_mark"),
        ("ctrl+x", "ctrl+x"),
        ("F5", "f5"),
        ("x, PageUp", "x,pageup"),
        ("/", "slash"),
        ("@", "at"),
    ],
)
def test_keys_are_written_as_a_person_writes_them(written: str, keys: str) -> None:
    assert keymap.spelled(written) == keys


@pytest.mark.parametrize("written", ["", "x,", "ctrl+", "hyper+x", "foo", "\x1b", "ctrl+foo", "é" * 2])
def test_what_is_no_key_is_one_sentence_and_the_default_keys_hold(written: str, tmp_path: Path) -> None:
    path = settings_file(tmp_path, f'[keys]\n"run.stop" = {json.dumps(written)}\n')
    before = keymap.KEYS
    settings, problem = chosen(path, {})
    assert "There is no key" in problem and "\n" not in problem
    assert (settings, keymap.KEYS) == (Settings(), before)


def test_help_shows_the_keys_that_hold(tmp_path: Path) -> None:
    path = settings_file(tmp_path, '[keys]\n"run.stop" = "?"\n"everywhere.help" = "f1"\n')
    code = (
        "import sys, pathlib; from tui.launchpad import chosen; assert chosen(pathlib.Path(sys.argv[1]), {})[1] == ''; "
        "from tui.screens.help import help_text; print(help_text('run').plain)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert any(line.split()[:2] == ["?", "stop"] for line in lines) and any(line.split()[:2] == ["f1", "these"] for line in lines)


def test_no_key_means_two_things_on_one_screen() -> None:
    for where in {key.where for key in keymap.KEYS}:
        over = () if where in keymap.DIALOGS else ("everywhere",)
        keys = [one for key in keymap.KEYS if key.where in {where, *over} for one in key.keys.split(",")]
        again = {key for key in keys if keys.count(key) > 1}
        assert again == set(), where


async def test_a_console_that_may_only_look_changes_nothing(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    app = make_app(run_id="run-a", settings=Settings(read_only=True))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "● running", "read-only")
        for key in ("s", "p"):
            await pilot.press(key)
            await until_seen(pilot, "nothing was changed")
        app.session.stop("run-a", "now")
        app.session.save_notes("run-a", "", "x")
        await pilot.pause()
        assert (container.stops, container.launches) == ([], [])
        assert not (container.root / "run-a" / "NOTES.md").exists()


async def test_a_theme_chosen_on_one_screen_is_that_of_the_others(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.screen.HERE == "run", "the run")
        await pilot.press("1")
        await until(pilot, lambda: pilot.app.screen.HERE == "overview", "the overview")
        pilot.app.theme = next(name for name in PALETTES if name != pilot.app.theme)
        await pilot.press("4")
        await until(pilot, lambda: pilot.app.screen.HERE == "run", "the run again")
        await pilot.pause()
        grounds = {pilot.app.screen.styles.background.hex, pilot.app.screen.query_one("RunLog").styles.background.hex}
        assert grounds == {PALETTES[pilot.app.theme].background.upper()}


@pytest.mark.parametrize("name", list(PALETTES))
async def test_every_theme_draws_every_text_in_its_own_colours(container: FakeContainer, make_app: MakeApp, name: str) -> None:
    write_run(container.root, "run-a", "finished", steps=180)
    async with make_app(run_id="run-a", settings=Settings(theme=name)).run_test(size=(80, 24)) as pilot:  # type: ignore[arg-type]
        await until_seen(pilot, "✓ finished", "Verdict")
        picture = pilot.app.export_screenshot().lower()
        assert PALETTES[name].text in picture
        if name == "paper":
            assert PALETTES["calm"].text not in picture and PALETTES["calm"].accent not in picture


async def test_ascii_is_only_ascii_plots_included(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a", settings=Settings(ascii=True)).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "* running" in painted(pilot.app), "the state")
        text = painted(pilot.app)
        assert text.isascii() and "loss" in text and "Stages" in text
        await pilot.press("question_mark")
        await until(pilot, lambda: "close it" in painted(pilot.app), "the help")
        rows = [row for row in painted(pilot.app).splitlines() if row.endswith("|") and "Help" not in row]
        assert rows and not [row for row in rows if "?" in row and "these keys" not in row]  # the scroll bar's ends too


def painted(app: object) -> str:
    """The screen after the filters of lines."""
    rows = []
    for strip in app.screen._compositor.render_strips():  # type: ignore[attr-defined]
        segments = list(strip)
        for line_filter in app.get_line_filters():  # type: ignore[attr-defined]
            segments = line_filter.apply(segments, app.screen.background_colors[1])  # type: ignore[attr-defined]
        rows.append("".join(segment.text for segment in segments))
    return "\n".join(rows)


def test_every_character_keeps_its_width_in_ascii() -> None:
    for character in "●✓✗▲…━─│╭⣿⠁→漢é":
        assert ascii_of(character).isascii() and len(ascii_of(character)) in (1, 2)
    assert len(ascii_of("漢")) == 2


async def test_held_back_questions_are_said_and_go_on(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running")
        await pilot.press("ctrl+k")
        await until_seen(pilot, "held")
        container.update("run-a", state="failed", ended_at=NOW)
        await pilot.pause(0.3)
        assert "✗ failed" not in seen(pilot.app)  # type: ignore[arg-type]
        await pilot.press("ctrl+k")
        await until_seen(pilot, "✗ failed")


def run(run_id: str, state: str, attempt: int = 1) -> RunSummary:
    return RunSummary(run_id=run_id, state=state, attempt=attempt)  # type: ignore[arg-type]


def test_a_run_that_ends_is_news_once_and_one_seen_for_the_first_time_is_none() -> None:
    before = {"a": run("a", "running"), "b": run("b", "failed")}
    found = of_runs(before, [run("a", "failed"), run("b", "failed"), run("new", "failed")])
    assert [(alert.kind, alert.text) for alert in found] == [("failed", "a: ✗ failed")]
    assert of_runs(before, [run("b", "failed", attempt=2)])[0].key == "b 2 failed"


def test_a_full_disk_and_a_lost_link_are_worth_a_call() -> None:
    assert [a.key for a in of_disks([Disk(path="/d", total_bytes=100, free_bytes=4), Disk(path="/x")])] == ["disk /d"]
    assert of_link("down", 30, "box", "gone") == [] and of_link("down", 61, "box", "gone")[0].kind == "link"
    assert of_link("up", 999, "box", "") == [] and of_link("refused", 61, "box", "another key")[0].kind == "link"


def test_quiet_hours_may_go_over_midnight() -> None:
    night = quiet_span("22:00-07:00")
    assert [is_quiet(night, hour * 60) for hour in (21, 22, 23, 0, 6, 7, 12)] == [False, True, True, True, True, False, False]
    assert is_quiet(quiet_span("12:00-13:00"), 12 * 60 + 30) and not is_quiet(None, 0)


def test_what_happened_since_is_told_in_one_line() -> None:
    before = {"a": run("a", "running"), "b": run("b", "finished")}
    words = since_words(before, [run("a", "failed"), run("b", "finished"), run("c", "running")], "14 h ago")
    assert words == "Since you last looked, 14 h ago: a ✗ failed, 1 new run."
    assert since_words(before, [run("b", "finished")], "now") == ""


async def test_the_operator_is_called_once_for_a_fact_by_bell_notification_and_command(tmp_path: Path) -> None:
    out = tmp_path / "said.json"
    script = f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read() + '\\n')"
    rung: list[str] = []
    caller = Caller(
        AlertSettings(command=(sys.executable, "-c", script)), host="box", clock=Clock(),
        ring=lambda: rung.append("bell"), notify=rung.append, tell=rung.append,
    )  # fmt: skip
    alert = Alert("failed", "a 1 failed", "a: ✗ failed")
    assert caller.take([alert]) == [alert]
    assert caller.take([alert]) == []
    await asyncio.wait_for(asyncio.gather(*caller._commands), 60)
    assert rung == ["bell", "a: ✗ failed"]
    said = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(s["kind"], s["host"], s["text"]) for s in said] == [("failed", "box", "a: ✗ failed")]
    await caller.close()


async def test_in_quiet_hours_nobody_is_called_and_a_broken_command_is_told_once() -> None:
    rung: list[str] = []
    command = ("/nowhere/at/all",)
    for settings, calls in (
        (AlertSettings(quiet_hours="00:00-00:00", command=command), 0),
        (AlertSettings(bell=False, desktop=False, command=command), 1),
    ):
        caller = Caller(settings, host="box", clock=Clock(), ring=rung.clear, notify=rung.append, tell=rung.append)
        for n in range(2):
            assert caller.take([Alert("failed", f"a {n}", "x")])
            await asyncio.gather(*caller._commands)
        assert len(rung) == calls
    assert "/nowhere/at/all failed" in rung[0]


async def test_on_return_the_console_says_what_happened(
    container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path: Path
) -> None:
    write_run(container.root, "run-a")
    path = tmp_path / "catalog.sqlite"
    async with make_app(catalog=Catalog(path)).run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running")
    container.update("run-a", state="failed", ended_at=NOW)
    clock.now += 7200
    async with make_app(catalog=Catalog(path)).run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "Since you last looked, 2 h ago: run-a ✗ failed.")
        await pilot.press("escape")
        await until(pilot, lambda: "Since you" not in seen(pilot.app), "it to go")  # type: ignore[arg-type]


def written(folder: Path) -> dict[str, str]:
    """What an export left, by suffix."""
    return {path.suffix: path.read_text() for path in folder.glob("eagle3-run-*")}


def test_rows_become_columns_and_no_cell_is_a_formula() -> None:
    made = tables_of([MetricRow(stage="=cmd()", step=1, acc_pos=[0.5, None])])
    header, row = made["csv"].splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert (cells["acc_pos.0"], cells["acc_pos.1"], cells["stage"]) == ("0.5", "", "'=cmd()")
    assert json.loads(made["json"])[0]["step"] == 1


async def test_the_picture_and_its_data_are_written_side_by_side(
    container: FakeContainer, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(container.root, "run-a", steps=5)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● running", "step 4")
        await pilot.press("e")
        await until(pilot, lambda: len(written(tmp_path)) == 3, "the files")
        assert written(tmp_path)[".csv"].count("\n") == 1 + 5 + 1
        await pilot.press("y")
        await until(pilot, lambda: "Stages" in pilot.app.clipboard, "the clipboard")
