"""One line of progress: a bar, counts, rate and the time that is left; and why it is quiet, where it is."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from eagle3.core.records import Progress
from tui.formats import bar, clean_line, count_label, duration_label, fit, rate_label, share
from tui.state import RunView
from tui.themes.palette import ACCENT, MUTED, TEXT, WARN
from tui.widgets.headline import PAUSED
from tui.widgets.panel import bar_text


def counts(progress: Progress) -> str:
    """ "62/180 steps", or "62 steps" where the total is not known."""
    total = f"/{count_label(progress.total)}" if progress.total is not None else ""
    return f"{count_label(progress.done)}{total} {clean_line(progress.unit, 20)}".rstrip()


def eta_s(progress: Progress, passed_s: float) -> float | None:
    """Seconds left by what was said ``passed_s`` ago; never below zero."""
    return None if progress.eta_s is None else max(0.0, progress.eta_s - passed_s)


def progress_text(view: RunView, now: float, width: int) -> Text:
    """The line for a width: bar first, then what fits of counts, rate, ETA."""
    progress = view.progress
    if view.state == "finished":
        return Text("")
    if progress is None or not progress.stage:
        return Text("waiting for the first word of the run" if not view.ended else "", MUTED)
    passed = view.age_of(progress.t, now) or 0.0
    words = [counts(progress)]
    if not view.ended:
        words.append(rate_label(progress.rate, clean_line(progress.unit, 20)))
        left = eta_s(progress, passed)
        words.append(f"{duration_label(left)} left" if left is not None else "")
    done = share(progress.done, progress.total)
    if done is not None:
        words.insert(0, f"{done:4.0%}")
    tail = "  ".join(word for word in words if word)
    stage = f"{progress.stage} " if len(progress.stage) + len(tail) + 12 < width else ""
    text = Text.assemble(
        (stage, TEXT), bar_text(bar(done, max(6, width - len(stage) - len(tail) - 2)), ACCENT), f"  {fit(tail, width - 8)}"
    )
    if not view.ended and view.summary and progress.quiet_until and progress.quiet_until > view.summary.now:
        why = clean_line(progress.reason).rstrip(".") or "nothing is heard for a while"
        if view.summary.state_text.startswith(PAUSED) and why.startswith(PAUSED):
            why = why.partition(". ")[2]  # who holds it stands in the headline
        rest = progress.quiet_until - view.summary.now - (now - (view.at or now))
        if why:
            text.append("\n")
            text.append(fit(f"◌ {why}; may be quiet for {duration_label(rest)} more", width), MUTED)
    elif view.state == "stalled":
        text.append("\n")
        text.append(fit(f"▲ nothing new for {duration_label(passed)}; look at the log, or stop and resume", width), WARN)
    return text


class ProgressLine(Widget):
    """``show`` at each tick; repaints only where the text differs."""

    view: RunView | None = None
    now: float = 0.0
    _last: Text | None = None

    def show(self, view: RunView, now: float) -> None:
        self.view, self.now = view, now
        text = progress_text(view, now, self.content_size.width or 76)
        if text != self._last:
            before, self._last = self._last, text
            self.display = bool(text.plain)
            self.refresh(layout=before is None or before.plain.count("\n") != text.plain.count("\n"))

    def render(self) -> Text:
        return Text("") if self.view is None else progress_text(self.view, self.now, self.content_size.width or 76)
