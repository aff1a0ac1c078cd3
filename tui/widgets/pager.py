"""The lines of a log in sight: remote text shown as text, coloured by level, matches marked."""

from __future__ import annotations

import re

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from eagle3.core.records import LogLine
from tui.formats import clean_line, count_label
from tui.reading import Reading
from tui.themes.palette import ACCENT, BAD, MUTED, TEXT, WARN

LINE_CHARS = 2000
_LEVELS = (
    (re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|\[error\]|\bTraceback \(most recent|^[A-Za-z_.]*(?:Error|Exception)\b:"), BAD),
    (re.compile(r"\bWARN(?:ING)?\b|\[warn\]|\b[A-Za-z]*Warning: "), WARN),
)
SIDEWAYS = 20


def line_text(line: LogLine, pattern: re.Pattern[str] | None, current: bool) -> Text:
    """One line. What the pattern finds in it is reversed; the line that the search is at has a mark before it."""
    words = clean_line(line.text, LINE_CHARS)
    if line.chars > len(line.text):
        words += f"… ({count_label(line.chars)} characters)"
    colour = next((colour for level, colour in _LEVELS if level.search(words)), TEXT)
    text = Text(words, colour, no_wrap=True, end="")
    if pattern is not None:
        for found in pattern.finditer(words):
            if found.end() > found.start():
                text.stylize("reverse", found.start(), found.end())
    return Text.assemble(("▸ " if current else "  ", ACCENT), text, end="")


def shown_pattern(pattern: str) -> re.Pattern[str] | None:
    """What to mark; None for a search by level, and for a pattern of another dialect of regular expressions."""
    if pattern.startswith("level:"):
        return None
    try:
        return re.compile(pattern, re.IGNORECASE if pattern == pattern.lower() else 0)
    except re.error:
        return None


class LogPager(Widget, can_focus=True):
    """Draws ``reading``; what the wheel and the mouse ask for it tells as `Moved`."""

    class Moved(Message):
        """The reader turned the wheel by ``rows``."""

        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._reading: Reading | None = None
        self._shown: object = None
        self.wrap = False
        self.left = 0

    @property
    def height(self) -> int:
        """Rows for lines; at least one."""
        return max(1, self.content_size.height)

    def show(self, reading: Reading) -> None:
        """Repaint where something in sight changed."""
        self._reading = reading
        search = reading.search
        shown = (
            reading.run_id, reading.name, reading.top, reading.end, len(reading.lines), self.wrap, self.left,
            (search.pattern, search.current) if search else None, reading.lines[-1].text if reading.lines else "",
        )  # fmt: skip
        if shown != self._shown:
            self._shown = shown
            self.refresh()

    def sideways(self, columns: int) -> None:
        """Move the view right (or left) along lines that are not wrapped."""
        self.left = max(0, self.left + columns)

    def render(self) -> Text:
        if self._reading is None:
            return Text()
        reading, width = self._reading, max(1, self.content_size.width)
        pattern = shown_pattern(reading.search.pattern) if reading.search else None
        current = reading.search.current if reading.search else None
        rows: list[Text] = []
        for line in reading.visible(self.height):
            text = line_text(line, pattern, line.at == current)
            if self.wrap:
                rows += text.wrap(self.app.console, width, no_wrap=False, overflow="fold") or [text]
            else:
                row = text[self.left :] if self.left else text
                row.truncate(width, overflow="ellipsis")  # a row that the terminal folded would push the last lines out of sight
                rows.append(row)
        if self.wrap and reading.following:
            rows = rows[-self.height :]
        text = Text("\n", no_wrap=True, overflow="ellipsis").join(rows[: self.height])
        return text if rows else Text("Nothing yet." if reading.at else "", MUTED)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(self.Moved(3))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(self.Moved(-3))
