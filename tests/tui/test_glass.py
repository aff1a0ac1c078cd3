"""The terminal shows what the console's widgets would paint now, whatever was painted alone, came over it or went again."""

from __future__ import annotations

import random
from typing import Any

import pyte
import pytest
from textual._compositor import CompositorUpdate
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import lines, metric, write_run
from tui.app import ConsoleApp

SIZE = (120, 40)
STEPS = 14


class Glass:
    """A terminal that is given what the console sends, with no terminal in between."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.Stream(self.screen)

    def take(self, app: App[Any], screen: Screen[Any], picture: object) -> None:
        """In the place of Textual's own way to its driver."""
        if isinstance(picture, CompositorUpdate) and not app._batch_count and screen is app.screen:
            self._stream.feed(picture.render_segments(app.console).replace("\n", "\r\n"))

    def wrong(self, app: ConsoleApp) -> list[str]:
        """Rows that stand there otherwise than they would be painted now."""
        rows = zip(self.screen.display, seen(app).splitlines(), strict=True)
        return [f"{y:3} stands {stands}\n    should {should}" for y, (stands, should) in enumerate(rows) if stands != should]


async def settled(pilot: Pilot[Any]) -> None:
    """Until nothing waits to be painted."""
    screen = pilot.app.screen
    await until(
        pilot,
        lambda: not (screen._dirty_widgets or screen._compositor._dirty_regions or screen._layout_required),
        "the picture to be painted",
    )


async def test_nothing_that_is_painted_alone_and_no_note_that_goes_leaves_a_blank_behind(
    container: FakeContainer, make_app: MakeApp, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, glass = random.Random(6), Glass(SIZE)
    monkeypatch.setattr(App, "_display", lambda app, screen, picture: glass.take(app, screen, picture))
    run = write_run(container.root, "run-a")
    async with make_app(run_id="run-a").run_test(size=SIZE, notifications=True) as pilot:
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        await until_seen(pilot, "● running", "step")
        steps = 62

        async def one_widget() -> None:
            draw.choice([widget for widget in app.screen.query("*") if widget.region]).refresh()

        async def a_note() -> None:
            app.tell("Disk /data is nearly full. " * draw.randint(1, 3), "warning")

        async def no_note() -> None:
            app.clear_notifications()

        async def more_rows() -> None:
            nonlocal steps
            lines(run / "metrics.jsonl", [metric(step) for step in range(steps + 1, steps + 21)])
            steps, clock.now = steps + 20, clock.now + 4

        async def another_size() -> None:
            columns, rows = draw.choice([SIZE, (80, 24)])
            glass.screen.resize(rows, columns)
            await pilot.resize_terminal(columns, rows)

        acts = [one_widget, one_widget, one_widget, a_note, no_note, more_rows, another_size]
        keys = ["z", "m", "1", "4", "5", "question_mark", "escape", "s", "escape", "4"]
        for n in range(STEPS):
            what = draw.choice([*acts, *keys])
            await (pilot.press(what) if isinstance(what, str) else what())
            await settled(pilot)
            assert not (wrong := glass.wrong(app)), f"after {what}, step {n}:\n" + "\n".join(wrong)
