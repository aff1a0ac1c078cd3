"""The Readiness screen: what is wrong and what to do, asked again one by one, with ages, and never a command to the terminal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Select

from eagle3.core.readiness.report import Action
from remote.errors import ContainerError
from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.facts import GIB, LITTLE, facts
from tui.app import ConsoleApp
from tui.catalog import Catalog
from tui.screens.readiness import ReadinessScreen
from tui.widgets.checks import CheckList

SIZES = [(80, 24), (120, 40)]


async def opened(pilot: Any) -> str:
    await until_seen(pilot, "none yet")
    await pilot.press("2")
    return await until_seen(pilot, "host.", "Found")


def under_cursor(app: ConsoleApp) -> str:
    row = app.screen.query_one(CheckList).current()
    return row.key if row else ""


@pytest.mark.parametrize("size", SIZES)
async def test_the_failing_check_comes_first_with_evidence_reason_and_remedy(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=size) as pilot:
        await opened(pilot)
        screen = await until_seen(
            pilot, "✗ not ready", "first: Memory: 1.0 GiB available of 24.0 GiB", "▾ host", "✗ failed  Memory", "host.memory",
            "took 0.42 s", "Found", "Why", "To do", "deep never", "smollm2-135m", "r Again", "d Deep",
        )  # fmt: skip
        lines = screen.splitlines()
        assert next(n for n, line in enumerate(lines) if "✗ Memory" in line) < next(
            n for n, line in enumerate(lines) if "✓ System" in line
        )


@pytest.mark.parametrize("size", SIZES)
async def test_a_group_folds_and_opens_by_key_and_by_mouse(
    container: FakeContainer, make_app: MakeApp, size: tuple[int, int]
) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=size) as pilot:
        await opened(pilot)
        await pilot.press("left")
        screen = await until_seen(pilot, "▸ host")
        assert "✗ Memory  1.0" not in screen
        await pilot.press("right")
        await until_seen(pilot, "▾ host", "✗ Memory  1.0")
        await pilot.press("home", "enter")
        await until_seen(pilot, "▸ host")
        row = next(n for n, line in enumerate(seen(pilot.app).splitlines()) if "▸ host" in line)  # type: ignore[arg-type]
        await pilot.click(offset=(6, row))
        await until_seen(pilot, "▾ host", "✗ Memory  1.0")
        await pilot.click(offset=(6, row + 3))
        await until(pilot, lambda: under_cursor(pilot.app) not in ("", "group host"), "the check that was clicked")  # type: ignore[arg-type]
        assert "▾ host" in seen(pilot.app)  # type: ignore[arg-type]


async def test_one_check_asks_only_its_section_and_the_others_keep_their_age(
    container: FakeContainer, make_app: MakeApp, clock: Clock
) -> None:
    container.known = facts(**LITTLE) | {"vllm": {"servers": [], "port": {}, "watch_s": 1.5, "took_s": 0.1}}
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        clock.now += 120
        container.known["host"]["memory_available_bytes"] = 20 * GIB
        await pilot.press("r")
        await until_seen(pilot, "▲ ready with warnings", "✓ ok  Memory")
        assert container.asked[-1][1] == ("host",)
        view = app.checking.current()[0]
        assert view is not None and view.facts_at["host"] - view.facts_at["vllm"] == 120
        assert "2 min ago" in seen(app), "the report is as old as its oldest light part"


async def test_a_group_is_asked_again_from_its_row_and_everything_with_R(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("home", "r")
        await until(pilot, lambda: len(container.asked) == 2, "the group's check")
        assert "host" in container.asked[-1][1]
        await until(pilot, lambda: pilot.app.checking.current()[0].asking is None, "the answer")  # type: ignore[attr-defined]
        await pilot.press("R")
        await until(pilot, lambda: len(container.asked) == 3, "the whole check")
        assert container.asked[-1][1] == ()


async def test_only_what_is_wrong(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(80, 24)) as pilot:
        assert "✓ System" in await opened(pilot)
        await pilot.press("w")
        screen = await until_seen(pilot, "only what is wrong", "✗ Memory")
        assert "✓ System" not in screen
        await pilot.press("w")
        await until_seen(pilot, "✓ System")


async def test_a_check_is_read_in_full_and_escape_leads_back_step_by_step(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "✓ System" not in seen(pilot.app), "the list to make room")  # type: ignore[arg-type]
        await pilot.press("escape")
        await until_seen(pilot, "✓ System", "✗ failed  Memory")
        await pilot.press("escape")
        await until_seen(pilot, "GPU memory")


HOSTILE = "x[red]\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x07\u202ecod\u200b\u2066[/] [@click=app.exit]y\r\nz"


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_evidence_is_only_text(container: FakeContainer, make_app: MakeApp, size: tuple[int, int]) -> None:
    container.known = facts(os=HOSTILE, hostname=HOSTILE, shell={**facts()["host"]["shell"], "sample": HOSTILE, "out_bytes": 9})
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await opened(pilot)
        app.screen.query_one(CheckList).go_to("check host.libc")
        screen = await until_seen(pilot, "x[red]cod[/] [@click=app.exit]y")
        for character in ("\x1b", "\u202e", "\u200b", "\u2066", "\x07"):
            assert character not in screen
        copied = app.screen.clip()  # type: ignore[attr-defined]
        assert "x\\[red\\]cod" in copied and "\x1b" not in copied and "\u202e" not in copied


async def test_the_report_is_copied_as_markdown_over_the_terminal(
    container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.known = facts(**LITTLE)
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("y")
        await until_seen(pilot, "Copied ", "OSC 52")
        assert app.clipboard.startswith("## Readiness of box: not ready")
        assert "| ✗ failed | host.memory | 1.0 GiB available of 24.0 GiB |" in app.clipboard


async def test_the_screen_is_exported_with_its_report(
    container: FakeContainer, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(120, 40), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("e")
        await until_seen(pilot, "Wrote")
    picture, data, words = exported(tmp_path)
    assert "<svg" in picture and words.startswith("## Readiness of box: not ready")
    assert json.loads(data)["first_fix"] == "host.memory"


def exported(folder: Path) -> tuple[str, ...]:
    """The picture, the JSON and the Markdown that one export has left."""
    [*files] = sorted(folder.glob("eagle3-readiness-*"), key=lambda path: (".svg", ".json", ".md").index(path.suffix))
    return tuple(path.read_text() for path in files)


@pytest.mark.parametrize("size", SIZES)
async def test_without_a_link_the_last_report_is_shown_with_its_age(
    container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path_factory: pytest.TempPathFactory, size: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("state") / "catalog.sqlite"
    container.known = facts(**LITTLE)
    async with make_app(catalog=Catalog(path)).run_test(size=size) as pilot:
        await opened(pilot)
    clock.now += 3 * 3600
    container.down = "The host is gone."
    async with make_app(catalog=Catalog(path)).run_test(size=size) as pilot:
        await pilot.press("2")
        screen = await until_seen(pilot, "✗ not ready · 3 h ago", "✗ Memory", "The host is gone.", "As of ")
        assert "old · 3 h ago" in screen


async def test_another_size_is_another_report(container: FakeContainer, make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        asked = len(container.asked)
        app.screen.query_one("#size", Select).value = "smoke"
        await until(pilot, lambda: len(container.asked) == asked + 1, "a check for the smoke")
        assert container.asked[-1][0]["needs"] != container.asked[-2][0]["needs"]
        assert app.choices.size == "pilot", "Launch keeps what it has"
        await pilot.press("f")
        await until(pilot, lambda: isinstance(app.focused, Select), "the fields")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ReadinessScreen) and isinstance(app.focused, CheckList), "the list")


async def test_a_check_that_brings_no_answer_says_why_and_keeps_what_was_known(
    container: FakeContainer, make_app: MakeApp
) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=(80, 24)) as pilot:
        await opened(pilot)

        async def broken(wants: Any, sections: Any = None) -> dict[str, Any]:
            raise ContainerError("busy", "The disk hangs.", "Ask again.")

        container.facts = broken  # type: ignore[method-assign]
        await pilot.press("R")
        await until_seen(pilot, "The disk hangs. Ask again.", "✗ Memory")


# --- deep

IMPORTS = {
    "python": "/env/bin/python", "took_s": 2.5,
    "packages": [{"name": "torch", "ok": True, "version": "2.13.0", "error": "", "where": "", "seconds": 2.0}],
}  # fmt: skip
BROKEN: dict[str, Any] = {
    **IMPORTS,
    "packages": [
        *IMPORTS["packages"],  # type: ignore[misc]
        {"name": "speculators", "ok": False, "version": "", "seconds": 0.1, "where": "/env/speculators/__init__.py:3",
         "error": "ModuleNotFoundError: No module named 'speculators.models'"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
async def test_deep_results_stream_in_with_what_is_being_done_and_its_limit(
    container: FakeContainer, make_app: MakeApp, clock: Clock, size: tuple[int, int]
) -> None:
    container.held = None
    container.deep = [("deep.imports.worker", BROKEN), ("deep.imports.server", IMPORTS)]
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await opened(pilot)
        container.held = asyncio.Event()
        await pilot.press("d")
        await until_seen(pilot, "Run the deep checks?", "Takes")
        await pilot.press("y")
        await until_seen(pilot, "◌ deep.imports.worker 0 s of at most 2 min 00 s", "0 answered")
        clock.now += 7
        await until_seen(pilot, "deep.imports.worker 7 s of at most", "7 s in all", "s Stop")
        container.held.set()
        await until_seen(pilot, "✗ not ready", "deep now", "d Deep")
        app.screen.query_one(CheckList).go_to("check python.imports_worker:speculators")
        await until_seen(pilot, "import speculators: ModuleNotFoundError", "m Mend", "m build the run's own")


async def test_a_deep_check_is_stopped_and_what_it_found_stays(container: FakeContainer, make_app: MakeApp) -> None:
    container.deep = [("deep.imports.worker", BROKEN), ("deep.imports.server", IMPORTS)]
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        container.held = asyncio.Event()
        await pilot.press("d")
        await until_seen(pilot, "Run the deep checks?")
        await pilot.press("y")
        await until_seen(pilot, "◌ deep.imports.worker")
        container.held.set()
        await until_seen(pilot, "✗ The worker's packages import speculators", "d Deep")
        container.held = asyncio.Event()
        await pilot.press("d")
        await until_seen(pilot, "Run the deep checks?")
        await pilot.press("y")
        await until_seen(pilot, "◌ deep.imports.worker")
        await pilot.press("s")
        await until_seen(pilot, "✗ The worker's packages import speculators", "d Deep")


async def broken_imports(pilot: Any, container: FakeContainer) -> None:
    """The cursor on a failing import, which offers to build an environment."""
    container.deep = [("deep.imports.worker", BROKEN)]
    await opened(pilot)
    await pilot.press("d")
    await until_seen(pilot, "Run the deep checks?")
    await pilot.press("y")
    await until_seen(pilot, "✗ not ready", "deep now")
    pilot.app.screen.query_one(CheckList).go_to("check python.imports_worker:speculators")
    await until_seen(pilot, "m Mend")


async def test_a_remedy_shows_what_it_would_do_and_does_it_only_when_confirmed(
    container: FakeContainer, make_app: MakeApp
) -> None:
    item = {"folder": "/data/env/abc [red]", "python": "/data/env/abc/bin/python", "commands": [["uv", "pip", "install", "x"]]}
    container.preview = lambda args: {"token": "t1", "items": [item], "refused": [], "text": "an environment"}
    async with make_app().run_test(size=(80, 24)) as pilot:
        await broken_imports(pilot, container)
        await pilot.press("m")
        await until_seen(pilot, "/data/env/abc [red]", "uv pip install x")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReadinessScreen), "the dialog to close")
        assert container.remedies == [("build_env", {"what": "worker"}, "")]
        asked = len(container.asked)
        await pilot.press("m")
        await until_seen(pilot, "uv pip install")
        await pilot.press("y")
        await until(pilot, lambda: [token for _, _, token in container.remedies] == ["", "", "t1"], "the remedy")
        await until_seen(pilot, "Run the deep checks?", "deep.imports.worker")
        await pilot.press("y")
        await until(pilot, lambda: len(container.asked) == asked + 1, "the check that offered it")
        assert container.asked[-1][1] == ("deep", "deep.imports.worker")


async def test_a_built_environment_is_followed_and_can_be_launched_with(container: FakeContainer, make_app: MakeApp) -> None:
    item = {"folder": "/data/env/abc", "python": "/data/env/abc/bin/python", "commands": ["python -m venv /data/env/abc"]}
    container.preview = lambda args: {"token": "t1", "items": [item], "refused": [], "text": "an environment"}

    async def act(action: str, args: Any, *, token: str = "") -> dict[str, Any]:
        return {"done": [item], "text": "started", "check_id": "build-1"} if token else container.preview(args)

    container.remedy = act  # type: ignore[method-assign]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await broken_imports(pilot, container)
        container.deep = []
        await pilot.press("m")
        await until_seen(pilot, "Runs", "python -m venv")
        await pilot.press("y")
        await until_seen(pilot, "The environment is built: launch with it?", "/data/env/abc/bin/python")
        await pilot.press("y")
        await until(pilot, lambda: app.choices.typed.get("worker_python") == "/data/env/abc/bin/python", "Launch to take it")
        assert container.jobs[-1] == "build-1"


async def test_a_deep_check_that_runs_there_already_is_listened_to(container: FakeContainer, make_app: MakeApp) -> None:
    container.running_job = "deep-of-yesterday"
    async with make_app().run_test(size=(80, 24)) as pilot:
        await broken_imports(pilot, container)
        assert container.jobs == ["deep-of-yesterday"]


async def test_what_to_delete_is_picked_by_size_and_only_that_is_deleted(container: FakeContainer, make_app: MakeApp) -> None:
    sizes = {"/w/runs/a/states": 3 * GIB, "/w/runs/b/states": GIB}
    tokens: list[str] = []

    def preview(args: dict[str, Any]) -> dict[str, Any]:
        tokens.append(" ".join(args["paths"]))
        items = [{"path": path, "bytes": sizes[path], "files": 7} for path in args["paths"]]
        return {"token": tokens[-1], "items": items, "refused": [], "text": ""}

    container.preview = preview
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        action = Action(verb="delete", args={"paths": list(sizes)}, label="choose what to delete")
        view = app.checking.current()[0]
        assert view is not None and view.report is not None
        app.mending.preview(view, view.report.checks[0].model_copy(update={"action": action}))
        await until_seen(pilot, "3.0 GiB  /w/runs/a/states", "1.0 GiB  /w/runs/b/states", "Nothing is picked")
        await pilot.press("d")
        await pilot.press("down", "space")
        await until_seen(pilot, "1 picked, 1.0 GiB")
        await pilot.press("d")
        await until(pilot, lambda: len(container.remedies) == 3, "the deletion")
        picked = "/w/runs/b/states"
        assert container.remedies[1:] == [("delete", {"paths": [picked]}, ""), ("delete", {"paths": [picked]}, picked)]
