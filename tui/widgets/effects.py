"""What the launch form amounts to: the estimate by stage, what differs from the presets, and the command that does the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from eagle3.core.estimate import Estimate, peak_parts
from eagle3.core.records import Probe
from eagle3.core.spec import RunSpec
from tui import expect
from tui.fields import listed
from tui.formats import bytes_label, duration_label, one_line
from tui.themes.palette import ACCENT, MUTED, TEXT, WARN
from tui.widgets.panel import caption, join

SOURCES = {"measured": TEXT, "reported": MUTED, "derived": MUTED, "": MUTED}


ONE_ROW_COLUMNS = 70
"""From so many columns on the sum, the most and what is free stand in one row."""


@dataclass(frozen=True)
class Amounts:
    """Everything that is said of one state of the form."""

    spec: RunSpec
    found: Estimate
    changes: Mapping[str, tuple[Any, Any]]
    commands: tuple[str, str]


class EffectsPanel(VerticalScroll):
    """``show`` at each tick; repaints where something differs. Arrows scroll it once it has the focus."""

    BINDINGS = [Binding("home", "scroll_home", show=False), Binding("end", "scroll_end", show=False)]  # noqa: RUF012

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Static(id="effects-text"), id=id)
        self.border_title = "What it will do"
        self._shown: object = None

    def show(self, amounts: Amounts | None, probe: Probe | None, old: str = "") -> None:
        """``old``: as of when the probe is, where it is stale."""
        text = (
            effects_text(amounts, probe, self.scrollable_content_region.width, old)
            if amounts is not None
            else Text("– until every field can be read", MUTED)
        )
        if (text.plain, text.spans) != self._shown:
            self._shown = (text.plain, text.spans)
            self.query_one("#effects-text", Static).update(text)
        number = len(amounts.changes) if amounts is not None else 0
        differs = f"{number} field{'s' if number > 1 else ''} differ{'s' if number == 1 else ''} from the preset"
        caption(self, subtitle=differs if number else "as the preset has it" if amounts is not None else "")


def effects_text(amounts: Amounts, probe: Probe | None, columns: int = 1000, old: str = "") -> Text:
    """The whole text for so many columns; lines are folded by the widget."""
    spec, found = amounts.spec, amounts.found
    table = [expect.STAGE_COLUMNS, *(expect.stage_cells(stage, spec) for stage in found.stages)]
    together = ("together", bytes_label(found.stage_bytes), duration_label(found.seconds), "", "", "")
    widths = [max(map(len, column)) for column in zip(*table, together, strict=True)]
    # As narrow as what stands in it: half of 120 columns must hold it unbroken.
    head, *lines = [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:-1], widths[1:-1]), cells[-1]] for cells in table]
    rows = [Text(" ".join(head), MUTED)]
    for stage, (name, *amount, source) in zip(found.stages, lines, strict=True):
        rows.append(Text.assemble((f"{name} ", ACCENT), (f"{' '.join(amount)} ", TEXT), (source, SOURCES[stage.rate_source])))
    sums = Text.assemble(
        (f"{together[0].ljust(widths[0])} ", ACCENT), (" ".join(map(str.rjust, together[1:3], widths[1:3])), f"bold {TEXT}")
    )
    free = expect.free_words(probe, spec)
    most = Text(f"at most {bytes_label(found.peak_bytes)}; {free}{old}", WARN if old or "not enough" in free else TEXT)
    # In one row where there is the room: in a low window it is the last one in sight.
    rows += [Text("  ").join([sums, most])] if columns >= ONE_ROW_COLUMNS else [sums, most]
    rows.append(Text.assemble(("made of     ", MUTED), (peak_parts(found), TEXT)))
    if gpus := expect.gpu_line(probe, spec):
        rows.append(Text.assemble(("GPU memory  ", MUTED), (gpus + old, WARN if old or "not enough" in gpus else TEXT)))
    for words, source in expect.break_even(found):
        rows.append(Text.assemble(("break-even  ", MUTED), (words, SOURCES[source])))
    rows += [Text.assemble(("problem     ", WARN), (one_line(problem, 400), WARN)) for problem in found.problems]
    rows += [Text(""), Text("Differs from the preset" if amounts.changes else "Nothing differs from the preset", f"bold {TEXT}")]
    rows += [Text(f"  {one_line(line, 300)}", TEXT) for line in listed(amounts.changes)]
    here, there = amounts.commands
    rows += [Text(""), Text("The same from a shell", f"bold {TEXT}"), Text(f"  {here}", TEXT), Text(f"  {there}", MUTED)]
    return join(rows)
