"""A field of a run in a form: its name, what is typed, unit and bounds, and below it the help, or what is wrong with it."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from tui.fields import Field
from tui.themes.palette import BAD, MUTED, TEXT


class FieldRow(Vertical):
    """``Input.Changed`` of its input is for the screen; the input's id is the field's name with dashes for dots."""

    def __init__(self, field: Field, text: str) -> None:
        super().__init__(classes="field-row", id=f"row-{field.name.replace('.', '-')}")
        self.field = field
        self._text = text
        self._problem = ""

    def compose(self) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Static(Text(self.field.name, MUTED), classes="label")
            yield Input(self._text, compact=True, id=self.field.name.replace(".", "-"))
            yield Static(Text(self.field.brief, MUTED, no_wrap=True, overflow="ellipsis"), classes="about")
        yield Static(Text(self.field.text, MUTED), classes="note")

    @property
    def input(self) -> Input:
        return self.query_one(Input)

    def show(self, default: str, problem: str, changed: bool) -> None:
        """The preset's value where nothing is typed, what is wrong, and whether the value differs from the preset's."""
        if not self.is_mounted or not self.query(Input):
            return
        if self.input.placeholder != default:
            self.input.placeholder = default
        label = self.query_one(".label", Static)
        wanted = Text(self.field.name, BAD if problem else TEXT if changed else MUTED)
        if label.content != wanted:
            label.update(wanted)
        note = self.query_one(".note", Static)
        words = Text(f"✗ {problem}", BAD) if problem else Text(f"{self.field.text}; preset {default}", MUTED)
        if note.content != words:
            note.update(words)
        self.set_class(bool(problem), "wrong")
