"""The list of checks: groups that fold, the worst first, and under the cursor the one that is told in full."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from eagle3.core.readiness.words import counts
from tui.formats import CHECK_WORDS, one_line
from tui.readiness import Row
from tui.themes.palette import ACCENT, CHECK_COLOURS, MUTED, TEXT


def row_text(row: Row, busy: bool) -> Text:
    """ "▾ disk  ✗ 1  ✓ 4" for a group, "  ✗ Free space  0.3 of 4.2 GiB" for a check. ``busy``: it is being asked again."""
    if row.check is None:
        text = Text.assemble(("▸ " if row.folded else "▾ ", ACCENT), (f"{row.group:<11}", f"bold {TEXT}"))
        for status, number in counts(row.checks).items():
            text.append(f" {CHECK_WORDS[status][0]} {number} ", CHECK_COLOURS[status])
    else:
        check = row.check
        text = Text.assemble((f"  {CHECK_WORDS[check.status][0]} ", CHECK_COLOURS[check.status]), one_line(check.title, 80))
        text.stylize(TEXT if check.status not in ("ok", "skipped") else MUTED, 4)
        which = check.id.removeprefix(check.kind).removeprefix(":")
        if which and which not in check.title:
            text.append(f" {one_line(which, 60)}", MUTED)
        text.append(f"  {one_line(check.evidence, 200)}" if check.evidence else "", MUTED)
    if busy:
        text.append("  ◌", ACCENT)
    return text


def _place_of(row: Row, rows: list[Row]) -> int | None:
    """Where ``row`` is now: itself, else another finding of the same check (a failing package that imports again), else
    its group."""
    kind = row.check.kind if row.check else None
    for number, other in enumerate(rows):
        if other.key == row.key:
            return number
    for number, other in enumerate(rows):
        if kind is not None and other.check is not None and other.check.kind == kind:
            return number
    return next((number for number, other in enumerate(rows) if other.check is None and other.group == row.group), None)


class CheckList(OptionList):
    """Posts `Chosen` for Enter on a row and for a click on a group; the cursor stays on its row across updates."""

    class Chosen(Message):
        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True, markup=False)
        self._rows: list[Row] = []
        self._drawn: list[Text] = []

    def show(self, rows: list[Row], busy: frozenset[str]) -> None:
        """Draw ``rows``; ``busy`` holds the ids of the checks that are being asked again."""
        drawn = [row_text(row, row.check is not None and row.check.id in busy) for row in rows]
        keys, before = [row.key for row in rows], [row.key for row in self._rows]
        current = self.current()
        first = not before
        if keys != before:
            with self.prevent(OptionList.OptionHighlighted):
                self.set_options([Option(text, id=str(number)) for number, text in enumerate(drawn)])
            at = _place_of(current, rows) if current else None
            # The first picture points at the first check that is wrong, or at the first group.
            start = next((n for n, row in enumerate(rows) if row.check), 0) if first else min(self._at, len(rows) - 1)
            self._rows, self._drawn = rows, drawn
            self.highlighted = (at if at is not None else start) if rows else None
            return
        for number, (old, new) in enumerate(zip(self._drawn, drawn, strict=True)):
            if old != new:
                self.replace_option_prompt_at_index(number, new)
        self._rows, self._drawn = rows, drawn

    @property
    def _at(self) -> int:
        return self.highlighted or 0

    def current(self) -> Row | None:
        """The row under the cursor."""
        at = self.highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    def go_to(self, key: str) -> None:
        """Put the cursor on the row ``key``, where there is one."""
        for number, row in enumerate(self._rows):
            if row.key == key:
                self.highlighted = number

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if row := self.current():
            self.post_message(self.Chosen(row))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, and folds or opens a group; it never leaves the list."""
        event.prevent_default()
        number = event.style.meta.get("option")
        if isinstance(number, int) and number < len(self._rows):
            self.highlighted = number
            if self._rows[number].check is None:
                self.post_message(self.Chosen(self._rows[number]))
