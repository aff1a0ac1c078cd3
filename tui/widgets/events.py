"""The guards of a run that have tripped, then its last events, newest first: what a person should know without the log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from eagle3.core.records import Event
from tui.formats import age_label, fit, one_line
from tui.state import RunView
from tui.themes.palette import BAD, MUTED, TEXT, WARN
from tui.widgets.panel import Panel, caption, join, quiet

LEVELS = {"error": ("✗", BAD), "warn": ("▲", WARN), "info": ("·", MUTED)}


def event_line(event: Event, width: int) -> Text:
    symbol, colour = LEVELS.get(event.level, ("·", MUTED))
    return Text.assemble(
        (f"{symbol} ", colour), (fit(one_line(event.text), width - 2), TEXT if event.level == "info" else colour)
    )


def tripped(events: Sequence[Event]) -> list[tuple[Event, int]]:
    """The guards that have tripped in the last attempt, the latest first: each one's last event, and how often it has."""
    last = max((event.attempt for event in events), default=0)
    found: dict[str, tuple[Event, int]] = {}
    for event in events:
        if event.guard_name and event.attempt == last:
            _, before = found.pop(event.guard_name, (event, 0))
            found[event.guard_name] = (event, before + 1)
    return list(reversed(found.values()))


def guard_line(event: Event, times: int, width: int) -> Text:
    """ "▲ guard stall ×2 …": what has tripped, before what it says."""
    name = f"guard {event.guard_name}{f' ×{times}' if times > 1 else ''} "
    symbol, colour = LEVELS.get(event.level, ("·", MUTED))
    told = fit(one_line(event.text), max(0, width - 2 - len(name)))
    return Text.assemble((f"{symbol} ", colour), (fit(name, width - 2), f"bold {colour}"), (told, colour))


class EventsPanel(Panel):
    TITLE = "Events"
    view: RunView | None = None

    def show(self, view: RunView, now: float) -> None:
        self.view = view
        last = view.events[-1] if view.events else None
        self.changed((view.run_id, len(view.events), last))
        words = age_label(view.age_of(last.t, now)) if last else "none yet"
        caption(self, subtitle=words)

    def draw(self, width: int) -> Text:
        if self.view is None or not self.view.events:
            return quiet("nothing yet")
        guards = tripped(self.view.events)
        pinned = {id(event) for event, _ in guards}
        others = [event for event in reversed(self.view.events) if id(event) not in pinned][:30]
        return join(
            [*(guard_line(event, times, width) for event, times in guards), *(event_line(event, width) for event in others)]
        )
