"""The first line of every screen: where one is, which host, and how the link stands and since when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from tui.formats import LINK_WORDS, fit, moment_label
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


SHORT_NOTES = {"read-only": "r/o", "recording": "rec"}
Tab = tuple[str, str, str]
"""(key, screen, label and the gap after it)."""


def _tabs(here: str, letters: int, gap: str, first: int = 20) -> list[Tab]:
    """All tabs with so many letters of each label, the first tab with ``first``, and the one of ``here`` whole."""
    found = []
    for key, name, label in TABS:
        words = label if name == here else label[: first if key == "1" else letters]
        found.append((key, name, f" {words}{gap}" if words else gap))
    return found


def title_for(here: str, columns: int, words: Sequence[str]) -> tuple[list[Tab], str]:
    """The tabs, and which of ``words`` (the same, ever shorter) stands on the right, in ``columns`` columns. Labels are
    shortened only where the shortest words leave no room for them; wide gaps are there where nothing is given up for them."""
    for letters, first, gap in ((20, 20, "  "), (20, 20, " "), (4, 20, " "), (4, 4, " ")):
        tabs = _tabs(here, letters, gap, first)
        taken = sum(len(key) + len(label) for key, _, label in tabs)
        for said in words[:1] if gap == "  " else words:
            if taken + len(said) <= columns:
                return tabs, said
    tabs = _tabs(here, 0, " ", 0)
    room = columns - sum(len(key) + len(label) for key, _, label in tabs)
    said = next((said for said in words if len(said) <= room), words[-1])
    return tabs, said if len(said) <= room else said.split(" since")[0]


def link_words(link: LinkState, now: float) -> str:
    """ "● up since 14:03", "✗ down since Nov 28 14:03:22": the state of the link, and since when by this machine's clock."""
    word = _link_word(link)
    if link.status == "connecting" or not link.since:
        return word
    form = "%H:%M:%S" if link.status in {"down", "refused"} else "%H:%M"
    return f"{word} since {moment_label(link.since, now, form)}"


def _link_word(link: LinkState) -> str:
    return " ".join(LINK_WORDS.get(link.status, ("?", link.status)))


def right_words(link: LinkState, notes: Sequence[str], now: float) -> tuple[str, ...]:
    """What stands on the right, and shorter ways to say it. Beside a note the time is given up before the labels of the tabs,
    but not that of a link that is gone."""
    whole = link_words(link, now)
    if not notes:
        return (whole,)
    short = whole if link.status in {"down", "refused"} else _link_word(link)
    few = [SHORT_NOTES.get(note, note) for note in notes]
    return tuple(" · ".join([*noted, words]) for noted, words in ((notes, whole), (notes, short), (few, short)))


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
        self._words: tuple[str, ...] = ("",)
        self._among = 1
        self._colour = MUTED

    def show(self, host: str, link: LinkState, now: float, notes: Sequence[str] = (), among: int = 1) -> None:
        """``notes`` hold for the whole console ("held", "read-only"); the host is one of ``among``."""
        words, colour = right_words(link, notes, now), WARN if notes else LINK_COLOURS.get(link.status, MUTED)
        if (host, words, colour, among) != (self._host, self._words, self._colour, self._among):
            self._host, self._words, self._colour, self._among = host, words, colour, among
            self.refresh()

    def render(self) -> Text:
        width = self.content_size.width
        line = Text(no_wrap=True)
        tabs, words = self._fitting()
        for key, name, label in tabs:
            here = name == self._here
            line.append(key, ACCENT if here else MUTED)
            line.append(label, f"bold {TEXT}" if here else MUTED)
        room = width - line.cell_len - len(words)
        host = fit(self._host, room - 2) if room > 6 else ""
        line.append(" " * max(0, room - len(host) - (2 if host else 0)))
        line.append(f"{host}  " if host else "", TEXT)
        line.append(words, self._colour)
        return line

    def on_click(self, event: events.Click) -> None:
        """A click on a tab goes there."""
        column = event.x - self.gutter.left
        for key, name, label in self._fitting()[0]:
            width = len(key) + len(label.rstrip())
            if 0 <= column < width:
                self.post_message(self.Picked(name))
                return
            column -= len(key) + len(label)

    def _fitting(self) -> tuple[list[Tab], str]:
        """Where there are several hosts, the name of the one in front is worth more than the labels of other screens."""
        kept = min(len(self._host), HOST_COLUMNS) + 3 if self._among > 1 else 0
        return title_for(self._here, self.content_size.width - kept, self._words)
