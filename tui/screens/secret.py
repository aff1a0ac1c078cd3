"""Asks for a password, a one-time code or a passphrase while a connection is made, or for a secret that a run needs. The
text goes nowhere else."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from remote.ask import SecretQuestion
from tui.formats import one_line
from tui.screens.question import Question
from tui.themes.palette import BAD, MUTED, TEXT


class Secret(Question[str | None]):
    """Returns the text, or None on Esc. It may come by itself: what somebody was typing then is no part of a password."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012 - Textual's spelling

    def __init__(self, question: SecretQuestion) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            question = self._question
            dialog.border_title = "Secret" if question.run_id else "Login"
            who = f"{one_line(question.run_id)} needs: " if question.run_id else f"{one_line(question.host)} asks: "
            yield Static(Text.assemble((who, MUTED), (one_line(question.prompt), TEXT)))
            yield Input(password=not question.echo, id="secret")
            kept = "kept in memory only, until the console ends" if question.run_id else "used once and not kept"
            yield Static(Text(f"Enter answers, Esc cancels; the answer is {kept}.", MUTED), id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value or not self._question.run_id:  # a login may be answered by nothing, as a code that comes by telephone
            self.dismiss(event.value)
        else:
            self.query_one("#note", Static).update(Text("✗ Nothing was typed; Esc cancels.", BAD))

    def action_cancel(self) -> None:
        self.dismiss(None)
