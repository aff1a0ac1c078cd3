"""The stages of a run: a symbol, the name and how long each took."""

from __future__ import annotations

from rich.text import Text

from eagle3.core.run_states import LIVE_STATES
from eagle3.core.stage_order import STAGES
from tui.formats import duration_label, short_duration
from tui.state import RunView, run_age_s
from tui.themes.palette import ACCENT, BAD, FAINT, GOOD, MUTED, TEXT
from tui.widgets.panel import Panel, join


def stage_rows(view: RunView) -> list[tuple[str, str, float | None]]:
    """(stage, state, seconds): state is done, running, failed, stopped or waiting. Seconds only of finished stages."""
    done = view.summary.stages if view.summary else {}
    current = view.progress.stage if view.progress else ""
    rows: list[tuple[str, str, float | None]] = []
    for stage in STAGES:
        if stage in done:
            rows.append((stage, "done", done[stage]))
        elif stage == current and view.state in LIVE_STATES:
            rows.append((stage, "running", None))
        elif stage == current and view.state != "finished":
            rows.append((stage, "stopped" if view.state == "stopped" else "failed", None))
        else:
            rows.append((stage, "waiting", None))
    return rows


MARKS = {
    "done": ("✓", GOOD, TEXT),
    "running": ("●", ACCENT, ACCENT),
    "failed": ("✗", BAD, BAD),
    "stopped": ("■", MUTED, TEXT),
    "waiting": ("·", FAINT, MUTED),
}


def lasted_s(view: RunView, now: float) -> float | None:
    """Seconds that the run has lasted: what its result says, where there is one."""
    if view.ended and view.result is not None and view.result.wall_s > 0:
        return view.result.wall_s
    return run_age_s(view.summary, view.at, now) if view.summary else None


def stages_text(view: RunView, now: float, width: int) -> Text:
    """The stage list; the last line is the run's time so far."""
    lines = []
    for stage, state, seconds in stage_rows(view):
        symbol, colour, name_colour = MARKS[state]
        said = duration_label(seconds) if width >= 28 else short_duration(seconds)
        right = said if seconds is not None else "" if state == "waiting" else state
        line = Text.assemble((f"{symbol} ", colour), (stage, name_colour))
        line.append(" " * max(1, width - line.cell_len - len(right)))
        line.append(right, colour if seconds is None else MUTED)
        lines.append(line)
    if (lasted := lasted_s(view, now)) is not None:
        label, right = ("so far" if not view.ended else "in all"), duration_label(lasted)
        lines.append(Text(f"  {label}{' ' * max(1, width - 2 - len(label) - len(right))}{right}", MUTED))
    return join(lines)


class StagesPanel(Panel):
    TITLE = "Stages"
    view: RunView | None = None
    now: float = 0.0

    def show(self, view: RunView, now: float) -> None:
        # A copy of what is drawn, to the second: the time so far moves on while the run lives.
        self.view, self.now = view, now
        lasted = lasted_s(view, now)
        self.changed((view.run_id, stage_rows(view), None if lasted is None else round(lasted), view.ended))

    def draw(self, width: int) -> Text:
        return Text("") if self.view is None else stages_text(self.view, self.now, width)
