"""Help: the table of keys, as it is, and how to read the symbols."""

from __future__ import annotations

import textwrap
from functools import partial

from rich.text import Text

from tui.formats import STATE_WORDS
from tui.keymap import key_label, keys_of
from tui.screens.reading import ReadingScreen
from tui.themes.palette import ACCENT, MUTED, STATE_COLOURS, TEXT
from tui.widgets.page import Page

PLACES = (
    ("everywhere", "Everywhere"),
    ("overview", "Overview"),
    ("readiness", "Readiness"),
    ("launch", "Launch"),
    ("run", "Run"),
    ("runs", "Runs"),
    ("compare", "Compare"),
    ("logs", "Logs"),
    ("notes", "Notes"),
    ("question", "A question"),
    ("reading", "Help, details, servers"),
)
KEY_COLUMNS = 8

MEANINGS = {
    "starting": "launched, and not heard of yet",
    "running": "its process is alive and speaks",
    "unsupervised": "its process is alive, but nothing watches over it",
    "stalled": "alive, but silent for longer than it said it would be",
    "finished": "every stage is done",
    "failed": "it ended by itself with an error; r resumes it",
    "stopped": "somebody stopped it; r resumes it",
    "lost": "it is gone and left no word; r resumes it",
    "unknown": "what is on disk does not tell",
}
LEGEND = (
    "lines are training",
    "dots are held-out prompts",
    "upright lines are checkpoints (faint), resumes (grey) and guards (amber)",
    "colours of the acceptance are the positions 1, 2, 3 of the draft",
)


def places(here: str) -> list[tuple[str, str]]:
    """The places in the order of help: the screen that it was opened on comes first."""
    return sorted(PLACES, key=lambda place: place[0] != here)


def help_text(here: str = "", width: int = 1000) -> Text:
    """The keys by place, then the plots and the states. What is longer than ``width`` columns goes on under its own words."""
    text = Text()
    for where, title in places(here):
        text.append(f"{title}\n", f"bold {TEXT}")
        for key in keys_of(where):
            text.append(f"  {key_label(key.keys):<{KEY_COLUMNS}}", ACCENT)
            _hung(text, key.help, 2 + KEY_COLUMNS, width)
        text.append("\n")
    text.append("Plots\n", f"bold {TEXT}")
    for line in LEGEND:
        text.append("  ")
        _hung(text, line, 2, width)
    text.append("\nStates of a run\n", f"bold {TEXT}")
    for state, (symbol, _) in STATE_WORDS.items():
        text.append(f"  {symbol} ", STATE_COLOURS[state])
        text.append(f"{state:<13}", TEXT)
        _hung(text, MEANINGS.get(state, ""), 17, width)
    text.append("\n")
    _hung(text, "A box that is dim says how old its values are. Runs go on when the console is closed.", 0, width)
    return text


def _hung(text: Text, words: str, indent: int, width: int) -> None:
    """Add ``words`` that begin at the column ``indent``, folded so that they stay right of it."""
    lines = textwrap.wrap(words, max(20, width - indent)) or [""]
    text.append(("\n" + " " * indent).join(lines) + "\n", MUTED)


class HelpScreen(ReadingScreen):
    OPENED_BY, HEADING = ("everywhere", "help"), "Help"

    def __init__(self, here: str = "") -> None:
        super().__init__()
        self._here = here

    def page(self) -> Page:
        return Page(partial(help_text, self._here), id="help")
