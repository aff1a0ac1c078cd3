"""The hosts of the console as a list: one group a host, folded to a line or open; the cursor is on the host in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui.formats import age_label, fit
from tui.standing import alerts_of, parts_of, summary_words
from tui.themes.palette import ACCENT, BAD, LINK_COLOURS, MUTED, TEXT, WARN
from tui.widgets.titlebar import link_words

if TYPE_CHECKING:
    from tui.state import Console

NAME_COLUMNS = 18


@dataclass(frozen=True)
class Group:
    """A host as it is shown."""

    console: Console
    folded: bool
    front: bool


def group_text(group: Group, now: float, width: int) -> Text:
    """The group's lines. The first holds name, link and since when, and how old the picture is; folded, what matters in the
    room that is left. A picture that is stale is dim and says so."""
    console = group.console
    stale = console.probe.at is not None and console.stale(console.probe.at, now)
    age = "not known yet" if console.probe.at is None else age_label(console.probe.age(now))
    age = f"stale · {age}" if stale else age
    alerts = alerts_of(console, now)
    line = Text(no_wrap=True)
    line.append("▸ " if group.folded else "▾ ", ACCENT)
    line.append(
        f"{fit(console.host, NAME_COLUMNS):<{min(NAME_COLUMNS, max(8, len(console.host)))}} ",
        f"bold {TEXT}" if group.front else TEXT,
    )
    line.append(link_words(console.link, now), LINK_COLOURS.get(console.link.status, MUTED))
    room = width - line.cell_len - len(age) - 3
    if group.folded:
        colour = BAD if console.link.status in ("down", "refused") else WARN
        pieces = [(f"▲ {len(alerts)}", colour)] if alerts else []
        pieces += [(words, MUTED if stale else TEXT) for words in summary_words(console)]
        for words, style in pieces:
            if len(words) + 2 > room:
                break
            line.append(f"  {words}", style)
            room -= len(words) + 2
        if alerts and room > 14:
            line.append(f"  {fit(alerts[0], room - 2)}", colour)
    line.append(" " * max(1, width - line.cell_len - len(age)))
    line.append(age, WARN if stale else MUTED)
    lines = [line]
    if not group.folded:
        for part in parts_of(console, now):
            lines.append(
                Text.assemble(
                    (f"    {part.name:<7}", MUTED),
                    (fit(part.words, width - 11), WARN if part.wrong else MUTED if stale else TEXT),
                )
            )
    return Text("\n").join(lines)


class HostList(OptionList):
    """Posts `Brought` when the cursor goes to another host, and `Folded` for Enter on one and for a click on its mark."""

    class Brought(Message):
        def __init__(self, host: str) -> None:
            super().__init__()
            self.host = host

    class Folded(Message):
        def __init__(self, host: str) -> None:
            super().__init__()
            self.host = host

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True, markup=False)
        self.border_title = "Hosts"
        self._names: list[str] = []
        self._drawn: list[Text] = []

    @property
    def rows(self) -> int:
        """Rows that the whole content takes, borders and all."""
        return sum(text.plain.count("\n") + 1 for text in self._drawn) + 2

    def show(self, groups: Sequence[Group], now: float) -> None:
        """Draw the groups; the cursor goes to the one in front."""
        width = (self.content_size.width or 76) - (1 if self.show_vertical_scrollbar else 0)
        drawn = [group_text(group, now, width) for group in groups]
        names = [group.console.host for group in groups]
        lines = [text.plain.count("\n") for text in drawn]
        with self.prevent(OptionList.OptionHighlighted):
            if names != self._names or lines != [text.plain.count("\n") for text in self._drawn]:
                self.set_options([Option(text, id=str(number)) for number, text in enumerate(drawn)])
            else:
                for number, (old, new) in enumerate(zip(self._drawn, drawn, strict=True)):
                    if old != new:
                        self.replace_option_prompt_at_index(number, new)
            self._names, self._drawn = names, drawn
            front = next((n for n, group in enumerate(groups) if group.front), None)
            if self.highlighted != front:
                self.highlighted = front

    def _name_at(self, number: int | None) -> str:
        return self._names[number] if number is not None and number < len(self._names) else ""

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if name := self._name_at(event.option_index):
            self.post_message(self.Brought(name))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if name := self._name_at(event.option_index):
            self.post_message(self.Folded(name))

    def on_click(self, event: events.Click) -> None:
        """A click brings a host; one on its mark, or on the host in front, folds or opens it."""
        event.prevent_default()
        number = event.style.meta.get("option")
        name = self._name_at(number if isinstance(number, int) else None)
        if not name:
            return
        if number == self.highlighted or event.x - self.gutter.left < 2:
            self.post_message(self.Folded(name))
        else:
            self.highlighted = number


def folds(names: Sequence[str], chosen: Mapping[str, bool], rows_open: Mapping[str, int], room: int) -> dict[str, bool]:
    """Which groups are folded: as the operator chose, and the others folded unless all of them fit into ``room`` rows open."""
    fit_all = sum(rows_open.values()) + 2 <= room
    return {name: chosen.get(name, not fit_all) for name in names}
