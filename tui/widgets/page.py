"""Much text to scroll through, of which only the lines in sight are painted.

Textual's ``Static`` folds and styles all of a text to know its height, twice: of the help that took most of the time from the key
to the picture.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Page(ScrollView, can_focus=True):
    """``write`` gives the text for a width, folded: a line of it is a line here. Our own words only, or cleaned ones."""

    def __init__(self, write: Callable[[int], Text], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._write = write
        self._lines: list[Text] = []

    def on_resize(self, event: events.Resize) -> None:
        width = self.scrollable_content_region.width
        self._lines = list(self._write(width).split("\n", allow_blank=True))
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, ground = self.size.width, self.visual_style.rich_style
        row = y + self.scroll_offset.y
        if row >= len(self._lines):
            return Strip.blank(width, ground)
        segments = self._lines[row].render(self.app.console, end="")
        return Strip(Segment.apply_style(segments, ground)).adjust_cell_length(width, ground)
