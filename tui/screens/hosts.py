"""Choosing hosts: those that are open, those of the ssh_config and those of before, and a line to name another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.formats import one_line
from tui.screens.question import Dialog
from tui.themes.filters import AsciiFilter
from tui.themes.palette import ACCENT, BAD, CALM, MUTED, PALETTES, TEXT, theme

NOTE = "Enter opens the host under the cursor, or those marked with Space."


@dataclass(frozen=True)
class HostChoice:
    """A host and a word on it: how its link stands, or where the name is from."""

    name: str
    words: str = ""


def choice_line(choice: HostChoice, marked: bool) -> Text:
    """ "▪ box-a  ● up since 14:03"."""
    return Text.assemble(
        ("▪ " if marked else "  ", ACCENT), (one_line(choice.name, 60), TEXT), (f"  {one_line(choice.words, 60)}", MUTED)
    )


class ChooseHosts(Dialog[list[str]]):
    """Returns the chosen names, none on cancel. ``typed``: another host may be named, too. ``named`` is what was typed before
    and was not reached, for the reason ``problem``."""

    def __init__(
        self, choices: Sequence[HostChoice], current: str = "", *, typed: bool = True, named: str = "", problem: str = ""
    ) -> None:
        super().__init__()
        self._named_before, self._problem = named, problem
        self._choices, self._current, self._typed = list(choices), current, typed
        self._marked: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = "Hosts"
            lines = [Option(choice_line(choice, False), id=str(n)) for n, choice in enumerate(self._choices)]
            yield OptionList(*lines, id="things", markup=False, compact=True)
            if self._typed:
                hint = "or another, as for ssh: gpu-box, user@host:2222"
                yield Input(self._named_before, placeholder=hint, compact=True, select_on_focus=False, id="other")
            note = Text(NOTE if self._choices else "The ssh_config names no host; write one.", MUTED)
            if self._problem:
                note = Text.assemble(
                    (f"✗ {one_line(self._problem, 300)} ", BAD), ("Mend it and press Enter; Esc leaves it.", MUTED)
                )
            yield Static(note, id="note")
            with Horizontal(id="choices"):
                yield Button(Text(" Open  Enter "), id="do", variant="primary", compact=True)
                yield Button(Text(" Cancel  Esc "), id="cancel", compact=True)

    def on_mount(self) -> None:
        things = self.query_one(OptionList)
        names = [choice.name for choice in self._choices]
        if self._problem and self._typed:
            self.query_one(Input).focus()
        elif names:
            things.highlighted = names.index(self._current) if self._current in names else 0
            things.focus()
        elif self._typed:
            self.query_one(Input).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "do":
            self._open()
        else:
            self.dismiss([])

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._open(typed=False)

    @on(Input.Submitted)
    def _named(self, event: Input.Submitted) -> None:
        event.stop()
        self._open()

    def _open(self, typed: bool = True) -> None:
        """``typed``: what stands in the field counts, which it does not for who takes a line of the list."""
        named = self.query_one(Input).value.split() if self._typed and typed else []
        at = self.query_one(OptionList).highlighted
        under = [self._choices[at].name] if at is not None else []
        if picked := [*self._marked, *named] or under:
            self.dismiss(picked)

    def on_key(self, event: events.Key) -> None:
        things = self.query_one(OptionList)
        if event.key == "escape":
            event.stop()
            self.dismiss([])
        elif event.key == "space" and things.has_focus and things.highlighted is not None:
            event.stop()
            choice = self._choices[things.highlighted]
            if choice.name in self._marked:
                self._marked.remove(choice.name)
            else:
                self._marked.append(choice.name)
            things.replace_option_prompt_at_index(things.highlighted, choice_line(choice, choice.name in self._marked))


class Chooser(App[list[str]]):
    """The dialog alone, for a console that was started without a host."""

    CSS_PATH = "../themes/console.tcss"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, choices: Sequence[HostChoice], theme_name: str, ascii_only: bool) -> None:
        super().__init__()
        self._choices, self._theme_name = list(choices), theme_name
        self._ascii = [AsciiFilter()] if ascii_only else []
        self.animation_level = "none"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """As the console's own."""
        return {"quiet": CALM.muted, "cursor": CALM.cursor}

    def get_line_filters(self) -> list[object]:  # type: ignore[override]
        """ASCII where it was asked for."""
        return [*super().get_line_filters(), *self._ascii]

    def on_mount(self) -> None:
        for name in PALETTES:
            self.register_theme(theme(name))
        self.theme = self._theme_name
        self.push_screen(ChooseHosts(self._choices), self.exit)
