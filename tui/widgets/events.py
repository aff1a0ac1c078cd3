"""The last events of a run, newest first: what a person should know, without reading the log."""

from __future__ import annotations

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
        return join([event_line(event, width) for event in list(reversed(self.view.events))[:30]])
