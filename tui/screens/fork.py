"""Fork: where to begin in what a run has made, which fields to change, and at once what that takes over and what runs again."""

from __future__ import annotations

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from eagle3.core.lineage import ForkError
from eagle3.core.presets import SpecError
from eagle3.core.records import Forkable
from tui.fields import shlex_split
from tui.forking import Fork, origins, planned
from tui.formats import one_line
from tui.screens.question import Dialog
from tui.themes.palette import BAD, MUTED, TEXT


class ForkScreen(Dialog[Fork | None]):
    """Returns the fork that was asked for; the confirmation is somebody else's. `show` brings what there is to fork from."""

    def __init__(self, run_id: str, workspace: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._workspace = workspace
        self._found: Forkable | None = None
        self._origins: list[tuple[str, str]] = []
        self._fork: Fork | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="wide") as dialog:
            dialog.border_title = f"Fork {one_line(self.run_id, 64)}"
            dialog.border_subtitle = "Tab goes on · Ctrl+l forks · Esc"
            yield Static(Text("Begin at", MUTED))
            yield OptionList(id="origins")
            yield Static(Text("Change, with spaces between: train.max_steps=300 …", MUTED), id="fork-label")
            yield Input(placeholder="nothing", compact=True, id="changes")
            with VerticalScroll(id="fork-plan"):
                yield Static(Text("looking what there is …", MUTED), id="plan-text")
            with Horizontal(id="choices"):
                yield Button(Text(" Fork  Ctrl+l "), id="do", variant="primary", compact=True, disabled=True)
                yield Button(Text(" Cancel  Esc "), id="cancel", compact=True)

    def show(self, found: Forkable | None, problem: str) -> None:
        """What there is to fork from, or why that is not known."""
        self._found = found
        if found is None:
            self.query_one("#plan-text", Static).update(Text(f"✗ {one_line(problem, 400)}", BAD))
            return
        self._origins = origins(found)
        listing = self.query_one("#origins", OptionList)
        listing.add_options(
            [Option(Text.assemble((f"{word or 'as it is':<14} ", TEXT), (words, MUTED))) for word, words in self._origins]
        )
        listing.highlighted = 0
        listing.focus()

    @on(OptionList.OptionHighlighted)
    @on(Input.Changed)
    def _plan(self, event: OptionList.OptionHighlighted | Input.Changed) -> None:
        event.stop()
        place = self.query_one("#origins", OptionList).highlighted
        if self._found is None or place is None:
            return
        self._fork, problem = None, ""
        try:
            changes = shlex_split(self.query_one("#changes", Input).value)
            self._fork = planned(self._found, self._origins[place][0], changes, self._workspace)
        except (SpecError, ForkError) as error:
            problem = one_line(str(error), 600)
        text = Text(f"✗ {problem}", BAD)
        if self._fork is not None:
            text = Text("\n".join(one_line(line, 600) for line in self._fork.plan.lines(self.run_id)), TEXT)
        self.query_one("#plan-text", Static).update(text)
        self.query_one("#do", Button).disabled = self._fork is None

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.query_one("#changes", Input).focus()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._do()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "do":
            self._do()
        else:
            self.dismiss(None)

    def _do(self) -> None:
        if self._fork is not None:
            self.dismiss(self._fork)

    def on_key(self, event: events.Key) -> None:
        if event.key in {"escape", "ctrl+l"}:
            event.stop()
            if event.key == "escape":
                self.dismiss(None)
            else:
                self._do()
