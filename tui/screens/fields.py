"""Every field of a run, to be searched by words of its name or its help; the one that is picked joins the form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui import fields
from tui.formats import fit
from tui.screens.question import Dialog
from tui.themes.palette import MUTED, TEXT

MOVES = {
    "up": "action_cursor_up", "down": "action_cursor_down", "pageup": "action_page_up", "pagedown": "action_page_down",
}  # fmt: skip
"""Keys that move in the list while words are typed."""
NAME_COLUMNS, VALUE_COLUMNS = 31, 18


class FieldsScreen(Dialog[str]):
    """Returns the name of a field, "" where none was picked. ``values``: the form's values by name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._values = values
        self._found: list[fields.Field] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="wide tall") as dialog:
            dialog.border_title = "All fields"
            dialog.border_subtitle = "type words · ↑ ↓ choose · Enter takes · Esc"
            yield Input(placeholder="words of a name or of its help: rate, guard, seconds …", compact=True, id="fields-words")
            yield OptionList(id="fields-found")
            yield Static(id="note")

    def on_mount(self) -> None:
        self._search("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._search(event.value)

    def _search(self, words: str) -> None:
        self._found = fields.found(words)
        listing = self.query_one(OptionList)
        listing.clear_options()
        listing.add_options([Option(self._line(field)) for field in self._found])
        listing.highlighted = 0 if self._found else None
        if not self._found:
            self.query_one("#note", Static).update(Text("No field has these words.", MUTED))

    def _line(self, field: fields.Field) -> Text:
        value = fit(fields.said(self._values.get(field.name)), VALUE_COLUMNS)
        return Text.assemble(
            (f"{field.name:<{NAME_COLUMNS}} ", TEXT), (f"{value:<{VALUE_COLUMNS}} ", TEXT), (field.about, MUTED),
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option_index < len(self._found):
            field = self._found[event.option_index]
            self.query_one("#note", Static).update(Text(f"{field.text} ({field.about})", MUTED))

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._found[event.option_index].name)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        place = self.query_one(OptionList).highlighted
        if place is not None and place < len(self._found):
            self.dismiss(self._found[place].name)

    def on_key(self, event: events.Key) -> None:
        listing = self.query_one(OptionList)
        if event.key == "escape":
            event.stop()
            self.dismiss("")
        elif event.key in MOVES and self.query_one(Input).has_focus:
            event.stop()
            getattr(listing, MOVES[event.key])()
