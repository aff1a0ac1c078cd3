"""One check in full: evidence, why it matters, what to do about it, details; or a group in numbers."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from eagle3.core.readiness.report import Check
from eagle3.core.readiness.words import counts, seconds_label
from tui.formats import CHECK_WORDS, age_label, clean_lines, one_line
from tui.keymap import key_of
from tui.readiness import Row
from tui.themes.palette import ACCENT, CHECK_COLOURS, GOOD, MUTED, TEXT


def head(check: Check, age_s: float | None, old: bool) -> Text:
    """ "✗ failed  Free space for the run" and below "disk.space:/data · 12 s ago · took 0.12 s"."""
    symbol, word = CHECK_WORDS[check.status]
    text = Text.assemble((f"{symbol} {word}  ", CHECK_COLOURS[check.status]), (one_line(check.title), f"bold {TEXT}"))
    took = seconds_label(check.took_s)
    parts = [one_line(check.id, 200), ("old · " if old else "") + age_label(age_s), f"took {took}" if took else ""]
    if check.deep:
        parts.append("deep")
    text.append("\n" + " · ".join(part for part in parts if part), MUTED)
    return text


def check_text(check: Check, age_s: float | None, old: bool) -> RenderableType:
    """A check in full; what comes from outside is text."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=8, style=MUTED)
    grid.add_column(ratio=1, style=TEXT, overflow="fold")
    if check.evidence:
        grid.add_row("Found", Text(one_line(check.evidence, 2000), TEXT))
    if check.remedy:
        grid.add_row("To do", Text(one_line(check.remedy, 1000), TEXT))
    if check.action is not None:
        label = one_line(check.action.label or check.action.verb)
        grid.add_row("Remedy", Text.assemble((key_of("readiness", "mend"), ACCENT), (f" {label}, after a preview", TEXT)))
        if check.action.command:
            copies = f"  {key_of('readiness', 'copy_command')} copies it"
            grid.add_row("Command", Text.assemble((one_line(check.action.command, 1000), ACCENT), (copies, MUTED)))
    if check.why:
        grid.add_row("Why", Text(one_line(check.why, 1000), MUTED))
    parts: list[RenderableType] = [head(check, age_s, old), grid]
    if check.detail:
        parts.append(marked("\n" + "\n".join(clean_lines(check.detail))))
    return Group(*parts)


def marked(text: str) -> Text:
    """Details, with what stands between ⟦ and ⟧ in another colour: so the loss mask's sample shows what is learnt."""
    out = Text(style=MUTED)
    for number, part in enumerate(re.split(r"(⟦[^⟧]*⟧)", text)):
        out.append(part, GOOD if number % 2 else MUTED)
    return out


def group_text(row: Row) -> Text:
    """A group in numbers, and what the keys do with it."""
    text = Text(f"{row.group}\n", f"bold {TEXT}")
    for status, number in counts(row.checks).items():
        symbol, word = CHECK_WORDS[status]
        text.append(f"{symbol} {number} {word}\n", CHECK_COLOURS[status])
    text.append(f"\nEnter folds and opens it, {key_of('readiness', 'again')} checks all of it again.", MUTED)
    return text


class CheckDetail(VerticalScroll):
    """Scrolls where a check has more to say than there is room for."""

    def compose(self) -> ComposeResult:
        yield Static(id="told")

    def on_mount(self) -> None:
        self.border_title = "Check"
        self._shown: object = None

    def show(self, row: Row | None, age_s: float | None, old: bool, nothing: str) -> None:
        """Tell the row under the cursor; where there is none, ``nothing``."""
        shown = (row, age_label(age_s), old, nothing)
        if shown == self._shown:
            return
        if row is None or self._shown is None or row.key != getattr(self._shown[0], "key", ""):  # type: ignore[index]
            self.scroll_home(animate=False)
        self._shown = shown
        told = self.query_one("#told", Static)
        if row is None:
            told.update(Text(nothing, MUTED))
        elif row.check is None:
            told.update(group_text(row))
        else:
            told.update(check_text(row.check, age_s, old))
