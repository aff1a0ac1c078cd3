"""Details of a run: the verdict with its thresholds or the failure in full, and every event kept."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from eagle3.core import evaluation, published
from eagle3.core.readiness.words import CHECK_WORDS, VERDICT_STATUS, WRONG, check_line, worst_first
from tui.formats import clean_line, moment_label, one_line
from tui.screens.reading import ReadingScreen
from tui.state import RunView
from tui.themes.palette import BAD, CHECK_COLOURS, MUTED, TEXT, WARN
from tui.widgets.events import LEVELS
from tui.widgets.headline import failure_words, figures_line

NAMED = 5
"""Checks of the report that are named one by one."""


def rounded(value: Any) -> Any:
    """The same values with their fractions to four digits."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def details_text(view: RunView) -> Text:
    """Everything that Run has no room for, remote text always as text."""
    text = Text()
    if view.state == "failed":
        text.append(f"✗ {failure_words(view)}\n", BAD)
        if view.failure and view.failure.detail:
            text.append("\n".join(clean_line(line) for line in view.failure.detail.splitlines()) + "\n", MUTED)
        text.append("\n")
    if result := view.result:
        text.append("Verdict\n", f"bold {TEXT}")
        text.append(f"  {one_line(result.verdict_text or result.verdict) or 'none was given'}\n", TEXT)
        if figures := figures_line(result):
            text.append(f"  {figures}\n", MUTED)
        told = evaluation.lines(result.curve, result.kinds, result.temperatures) + published.sentences(result.published)
        text.append("".join(f"  {one_line(line, 300)}\n" for line in told), TEXT)
        for name in ("thresholds", "val", "untrained", "served", "lossless"):
            if values := getattr(result, name):
                text.append(f"  {name:<11}", MUTED)
                text.append(f"{one_line(json.dumps(rounded(values), ensure_ascii=False), 2000)}\n", TEXT)
        text.append("\n")
    if view.summary is not None:
        text.append("Where\n", f"bold {TEXT}")
        text.append(f"  {one_line(view.summary.run_dir) or view.run_id}\n\n", TEXT)
    text.append("Started under\n", f"bold {TEXT}")
    if view.started_under is not None:
        report = view.started_under
        symbol, colour = CHECK_WORDS[VERDICT_STATUS[report.verdict]][0], CHECK_COLOURS[VERDICT_STATUS[report.verdict]]
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.as_of))
        text.append(f"  {symbol} {report.verdict}", colour)
        text.append(f" as of {taken}, {'deep' if report.deep else 'light'} checks (report.json)\n", MUTED)
        wrong = worst_first([check for check in report.checks if check.status in WRONG])
        for check in wrong[:NAMED]:
            text.append(f"  {check_line(check)}\n", MUTED)
        if len(wrong) > NAMED:
            text.append(f"  … {len(wrong) - NAMED} more to look at\n", MUTED)
    else:
        text.append(f"  {view.report_words or 'asking…'}\n", MUTED)
    text.append("\n")
    text.append("Events, newest first\n", f"bold {TEXT}")
    for event in reversed(view.events):
        symbol, colour = LEVELS.get(event.level, ("·", WARN))
        text.append(f"  {moment_label(event.t, view.summary.now if view.summary else event.t, '%H:%M:%S')} ", MUTED)
        text.append(f"{symbol} ", colour)
        text.append(f"{one_line(event.text, 1000)}\n", TEXT)
    if not view.events:
        text.append("  none yet\n", MUTED)
    return text


class DetailsScreen(ReadingScreen):
    OPENED_BY, HEADING, SHAPE = ("run", "verdict"), "Details", "tall wide"

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self._view = view

    def page(self) -> VerticalScroll:
        return VerticalScroll(Static(details_text(self._view), id="details"))

    def refresh_live(self) -> None:
        """Show what has come since: the report is read when the details are opened."""
        for widget in self.query("#details").results(Static):
            if widget.content != (text := details_text(self._view)):
                widget.update(text)
