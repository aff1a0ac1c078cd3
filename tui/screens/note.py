"""A note of one line, for NOTES.md of a run. It stays until the container has it, so that what was typed is never lost."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from tui.formats import one_line
from tui.screens.question import Dialog
from tui.themes.palette import BAD, MUTED

LONGEST = 1000
HINT = "Enter adds it to NOTES.md with time and name; 7 shows the notes."


class NoteScreen(Dialog[None]):
    """``add`` sends what was typed and gives the line as it will stand in the notes; `note_answered` says what came of it."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012 - Textual's spelling

    def __init__(self, run_id: str, add: Callable[[str], str]) -> None:
        super().__init__()
        self._run_id, self._add = run_id, add
        self._sent = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = f"Note on {one_line(self._run_id, 50)}"
            yield Input(placeholder="one line", max_length=LONGEST, compact=True, id="note-line")
            yield Static(Text(HINT, MUTED), id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        words = one_line(event.value, LONGEST)
        if not words:
            self._say(Text("✗ Nothing is written yet; Esc leaves it.", BAD))
        elif not self._sent:
            self._say(Text("Being added … Esc does not wait for it.", MUTED))
            self._sent = self._add(words)

    def note_answered(self, line: str, problem: str) -> bool:
        """Whether the line was this dialog's: it closes where the line was added, and says why where not."""
        if not self._sent or line != self._sent:
            return False
        self._sent = ""
        if problem:
            self._say(Text(f"✗ Not added: {one_line(problem, 300)} Enter tries again.", BAD))
        else:
            self.end()
        return True

    def _say(self, words: Text) -> None:
        self.query_one("#note", Static).update(words)

    def action_cancel(self) -> None:
        self.dismiss()
