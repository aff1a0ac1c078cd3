"""Picking things out of a preview by their sizes: nothing is chosen at first, and the sum of what is stands below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, SelectionList, Static
from textual.widgets.selection_list import Selection

from tui.formats import bytes_label, count_label, one_line
from tui.screens.question import Question
from tui.themes.palette import MUTED, TEXT


class Pick(Question[list[str]]):
    """Returns the picked paths; none on cancel. ``items`` are ``{"path","bytes","files"}``, the largest first."""

    def __init__(self, title: str, items: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._title = title
        self._items = sorted(items, key=lambda item: -float(item.get("bytes") or 0))

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="wide") as dialog:
            dialog.border_title = one_line(self._title)
            yield SelectionList[int](*(Selection(self._words(item), n) for n, item in enumerate(self._items)), id="things")
            yield Static(id="note")
            with Horizontal(id="choices"):
                yield Button(Text(" Delete these  d "), id="do", variant="error", compact=True)
                yield Button(Text(" Cancel  Esc "), id="cancel", compact=True)

    def on_mount(self) -> None:
        self.query_one(SelectionList).focus()
        self._sum()
        self.show_foot()

    @staticmethod
    def _words(item: Mapping[str, Any]) -> Text:
        files = f"  {count_label(item['files'])} files" if isinstance(item.get("files"), int) else ""
        return Text.assemble(
            (f"{bytes_label(item.get('bytes')):>9}  ", TEXT), (one_line(str(item.get("path")), 200), TEXT), (files, MUTED)
        )

    def foot(self) -> str:
        return "Space picks · d deletes what is picked · Esc"

    def _picked(self) -> list[Mapping[str, Any]]:
        return [self._items[number] for number in self.query_one(SelectionList).selected]

    @on(SelectionList.SelectedChanged)
    def _sum(self) -> None:
        picked = self._picked()
        total = sum(float(item.get("bytes") or 0) for item in picked)
        words = f"{len(picked)} picked, {bytes_label(total)}" if picked else "Nothing is picked."
        self.query_one("#note", Static).update(Text(words, MUTED))
        self.query_one("#do", Button).disabled = not picked

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self._end(event.button.id == "do")

    def on_key(self, event: events.Key) -> None:
        if event.key in {"escape", "d"}:
            event.stop()
            if event.key == "escape" or self._picked():
                self._end(event.key == "d")

    def _end(self, do: bool) -> None:
        self.dismiss([str(item["path"]) for item in self._picked()] if do else [])
