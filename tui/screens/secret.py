"""Asks for a password, a one-time code or a passphrase while a connection is made. The text goes nowhere else."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.formats import one_line
from tui.themes.palette import MUTED, TEXT


class Secret(ModalScreen[str | None]):
    """Returns the text, or None on Esc."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012 - Textual's spelling

    def __init__(self, host: str, prompt: str, echo: bool) -> None:
        super().__init__()
        self._host, self._prompt, self._echo = host, prompt, echo

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = "Login"
            yield Static(Text.assemble((f"{one_line(self._host)} asks: ", MUTED), (one_line(self._prompt), TEXT)))
            yield Input(password=not self._echo, id="secret")
            yield Static(Text("Enter answers, Esc cancels; the answer is used once and not kept.", MUTED), id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)
