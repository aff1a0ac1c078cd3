"""A note of one line, for NOTES.md of a run."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.formats import one_line
from tui.themes.palette import MUTED

LONGEST = 1000


class NoteScreen(ModalScreen[str]):
    """Returns what was typed, "" on Esc."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012 - Textual's spelling

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self._run_id = run_id

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = f"Note on {one_line(self._run_id, 50)}"
            yield Input(placeholder="one line", max_length=LONGEST, compact=True, id="note-line")
            yield Static(Text("Enter adds it to NOTES.md with time and name; 7 shows the notes.", MUTED), id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(one_line(event.value, LONGEST))

    def action_cancel(self) -> None:
        self.dismiss("")
