"""Much text to scroll through: folded to what is in sight, and all of it can be reached."""

from __future__ import annotations

from rich.text import Text
from textual.app import App, ComposeResult

from tui.widgets.page import Page

LINES = 60


def lines(width: int) -> Text:
    """So many numbered lines, each as wide as it may be."""
    return Text("\n").join([Text(f"{number:02}{'x' * (width - 3)}.") for number in range(LINES)])


class Reader(App[None]):
    CSS = "Page { height: 1fr; overflow: hidden auto; scrollbar-gutter: stable; }"

    def compose(self) -> ComposeResult:
        yield Page(lines)


def shown(app: App[None]) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def test_every_line_is_whole_and_the_last_one_can_be_reached() -> None:
    app = Reader()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        rows = shown(app)
        assert [row[:2] for row in rows] == [f"{number:02}" for number in range(10)]
        assert all(row.rstrip()[: row.rfind(".") + 1].endswith("x.") for row in rows), "the end of a line is out of sight"
        app.query_one(Page).focus()
        await pilot.press("end")
        await pilot.pause()
        assert [row[:2] for row in shown(app)] == [f"{number:02}" for number in range(LINES - 10, LINES)]


async def test_it_is_folded_anew_in_another_size() -> None:
    app = Reader()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        await pilot.resize_terminal(60, 10)
        await pilot.pause()
        assert all(row.rstrip()[: row.rfind(".") + 1].endswith("x.") for row in shown(app))
        assert app.query_one(Page).virtual_size.height == LINES
