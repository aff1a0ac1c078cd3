"""Help: the table of keys, as it is, and how to read the symbols."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.formats import STATE_WORDS
from tui.keymap import key_label, keys_of
from tui.themes.palette import ACCENT, MUTED, STATE_COLOURS, TEXT

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
)


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


def help_text() -> Text:
    """The keys by place, then the plots and the states."""
    text = Text()
    for where, title in PLACES:
        text.append(f"{title}\n", f"bold {TEXT}")
        for key in keys_of(where):
            text.append(f"  {key_label(key.keys):<8}", ACCENT)
            text.append(f"{key.help}\n", MUTED)
        text.append("\n")
    text.append("Plots\n", f"bold {TEXT}")
    for line in LEGEND:
        text.append(f"  {line}\n", MUTED)
    text.append("\nStates of a run\n", f"bold {TEXT}")
    for state, (symbol, _) in STATE_WORDS.items():
        text.append(f"  {symbol} ", STATE_COLOURS[state])
        text.append(f"{state:<13}", TEXT)
        text.append(f"{MEANINGS.get(state, '')}\n", MUTED)
    text.append("\nA box that is dim says how old its values are. Runs go on when the console is closed.", MUTED)
    return text


class HelpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,question_mark,q", "dismiss", "Close")]  # noqa: RUF012 - Textual's spelling

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="tall") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "Esc closes"
            with VerticalScroll():
                yield Static(help_text())

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(result)
