"""The first line of every screen: where one is, which host, and how the link stands and since when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from tui.formats import LINK_WORDS, fit
from tui.themes.palette import ACCENT, LINK_COLOURS, MUTED, TEXT, WARN

if TYPE_CHECKING:
    from tui.state import LinkState

TABS = (
    ("1", "overview", "Overview"),
    ("2", "readiness", "Readiness"),
    ("3", "launch", "Launch"),
    ("4", "run", "Run"),
    ("5", "runs", "Runs"),
    ("6", "logs", "Logs"),
    ("7", "notes", "Notes"),
)

HOST_COLUMNS = 16
"""Columns that a host's name keeps among several."""


def tabs_for(here: str, room: int) -> list[tuple[str, str, str]]:
    """(key, screen, label and the gap after it) for ``room`` columns: wide gaps, narrow ones, only the label of this
    screen whole, or it alone."""
    for letters, gap in ((20, "  "), (20, " "), (4, " "), (0, " ")):
        found = []
        for key, name, label in TABS:
            words = label if name == here or (key == "1" and letters) else label[:letters]
            found.append((key, name, f" {words}{gap}" if words else gap))
        if sum(len(key) + len(label) for key, _, label in found) <= room:
            break
    return found


def link_words(link: LinkState) -> str:
    """ "● up since 14:03", "✗ down since 14:03:22": the state of the link, and since when by this machine's clock."""
    symbol, word = LINK_WORDS.get(link.status, ("?", link.status))
    if link.status == "connecting" or not link.since:
        return f"{symbol} {word}"
    form = "%H:%M:%S" if link.status in {"down", "refused"} else "%H:%M"
    return f"{symbol} {word} since {time.strftime(form, time.localtime(link.since))}"


class TitleBar(Widget):
    """Tabs on the left (they can be clicked), the host and its link on the right."""

    class Picked(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, here: str) -> None:
        super().__init__()
        self._here = here
        self._host = ""
        self._words = ""
        self._among = 1
        self._colour = MUTED

    def show(self, host: str, link: LinkState, note: str = "", among: int = 1) -> None:
        """``note`` is what holds for the whole console ("held", "read-only"); the host is one of ``among``."""
        words, colour = link_words(link), LINK_COLOURS.get(link.status, MUTED)
        if note:
            words, colour = f"{note} · {words}", WARN
        if (host, words, colour, among) != (self._host, self._words, self._colour, self._among):
            self._host, self._words, self._colour, self._among = host, words, colour, among
            self.refresh()

    def render(self) -> Text:
        width = self.content_size.width
        line = Text(no_wrap=True)
        for key, name, label in self._tabs():
            here = name == self._here
            line.append(key, ACCENT if here else MUTED)
            line.append(label, f"bold {TEXT}" if here else MUTED)
        room = width - line.cell_len - len(self._words)
        host = fit(self._host, room - 2) if room > 6 else ""
        line.append(" " * max(0, room - len(host) - (2 if host else 0)))
        line.append(f"{host}  " if host else "", TEXT)
        line.append(self._words, self._colour)
        return line

    def on_click(self, event: events.Click) -> None:
        """A click on a tab goes there."""
        column = event.x - self.gutter.left
        for key, name, label in self._tabs():
            width = len(key) + len(label.rstrip())
            if 0 <= column < width:
                self.post_message(self.Picked(name))
                return
            column -= len(key) + len(label)

    def _tabs(self) -> list[tuple[str, str, str]]:
        """Where there are several hosts, the name of the one in front is worth more than the labels of other screens."""
        kept = min(len(self._host), HOST_COLUMNS) + 3 if self._among > 1 else 0
        return tabs_for(self._here, self.content_size.width - len(self._words) - kept)
