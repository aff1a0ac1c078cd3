"""A question with a typed answer: what it is about in aligned rows, then choices that have both a button and a key.

One rule for all of them: Enter takes what is lit, which is at first the answer that changes nothing. Whatever starts, stops,
costs or deletes is answered by its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Static

from tui.screens.base import bindings_of
from tui.screens.question import Question
from tui.themes.palette import MUTED, TEXT


@dataclass(frozen=True)
class Choice:
    """``result`` is what the screen returns; ``key`` picks it; ``safe``: it changes nothing, as an answer without a result."""

    result: str
    key: str
    label: str
    safe: bool = False
    danger: bool = False


CANCEL = Choice("", "escape", "Cancel")
WIDTH, GAP, ABOVE = 72, 2, 1
"""Columns of a dialog, those before each choice, and lines above the choices, as the style sheet has them."""


class Confirm(Question[str]):
    """Returns the chosen ``result``; "" on cancel. ``rows`` are (label, text) and always shown as text; ``live`` is one row
    more, whose text is asked anew with each piece of news. PgDn and PgUp scroll the rows where they do not all fit."""

    AUTO_FOCUS = ""
    BINDINGS = bindings_of("question")

    def __init__(
        self,
        title: str,
        rows: Sequence[tuple[str, str]],
        choices: Sequence[Choice],
        note: str = "",
        live: tuple[str, Callable[[], Text]] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._rows, self._note, self._live = title, rows, note, live
        self._choices = [*choices] if any(not choice.result for choice in choices) else [*choices, CANCEL]

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = self._title
            if self._rows:
                with Vertical(id="facts"):
                    for label, text in self._rows:
                        with Horizontal(classes="fact"):
                            yield Static(Text(label, MUTED), classes="label")
                            yield Static(Text(text, TEXT), classes="value")
                    if self._live:
                        with Horizontal(classes="fact"):
                            yield Static(Text(self._live[0], MUTED), classes="label")
                            yield Static(self._live[1](), id="live", classes="value")
                    if self._note:
                        yield Static(Text(self._note, MUTED), id="note")
            elif self._note:
                yield Static(Text(self._note, MUTED), id="note", classes="alone")
            with Horizontal(id="choices"):
                for number, choice in enumerate(self._choices):
                    key = {"escape": "Esc", "enter": "Enter"}.get(choice.key, choice.key)
                    yield Button(
                        Text(f" {choice.label}  {key} "),
                        id=f"choice-{number}",
                        variant="error" if choice.danger else "default",
                        compact=True,
                    )

    def on_mount(self) -> None:
        safe = next(n for n, choice in enumerate(self._choices) if choice.safe or not choice.result)
        self.query_one(f"#choice-{safe}", Button).focus()
        labels = [label for label, _ in self._rows] + ([self._live[0]] if self._live else [])
        label_width = max(map(len, labels), default=0) + 2
        for label in self.query(".label"):
            label.styles.width = label_width

    def harmless(self) -> frozenset[str]:
        return super().harmless() | {choice.key for choice in self._choices if choice.safe or not choice.result}

    def foot(self) -> str:
        """What Enter does now."""
        focused = self.focused.id if isinstance(self.focused, Button) else None
        here = next((choice.label for n, choice in enumerate(self._choices) if focused == f"choice-{n}"), "nothing")
        return f"Enter: {here} · arrows choose"

    def on_descendant_focus(self) -> None:
        self.show_foot()

    def on_resize(self, event: events.Resize) -> None:
        """The choices are always in sight: one below the other where they do not stand side by side, and the rows scroll in
        what is left."""
        dialog = self.query_one("#dialog")
        width, height = min(WIDTH, event.size.width * 96 // 100), event.size.height * 92 // 100
        side_by_side = sum(len(str(button.label)) + GAP for button in self.query("#choices Button").results(Button))
        stacked = side_by_side > width - dialog.gutter.width
        self.query_one("#choices").set_class(stacked, "stacked")
        taken = dialog.gutter.height + ABOVE + (len(self._choices) if stacked else 1)
        for facts in self.query("#facts"):
            facts.styles.max_height = max(1, height - taken)

    def refresh_live(self) -> None:
        """Show what is known now in the live row."""
        for widget in self.query("#live").results(Static):
            if self._live and widget.content != (text := self._live[1]()):
                widget.update(text)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(self._choices[int(str(event.button.id).removeprefix("choice-"))].result)

    def on_key(self, event: events.Key) -> None:
        for choice in self._choices:
            if event.key == choice.key and choice.result:
                event.stop()
                self.dismiss(choice.result)
                return

    def action_take(self) -> None:
        if isinstance(self.focused, Button):
            self.focused.press()

    def action_leave(self) -> None:
        self.dismiss("")

    def action_page(self, pages: int) -> None:
        for facts in self.query("#facts"):
            facts.scroll_relative(y=pages * max(1, facts.size.height - 1), animate=False)

    def action_light(self, step: int) -> None:
        """The focus to another answer."""
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()
