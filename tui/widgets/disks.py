"""Free space of each mount, and a word where it is low."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tui.formats import bar, bytes_label, clean_line, duration_label, fit, pair_label, share
from tui.machine_words import disk_warning
from tui.themes.palette import ACCENT, TEXT, WARN
from tui.widgets.panel import Panel, bar_text, join, quiet

if TYPE_CHECKING:
    from eagle3.core.records import Disk
    from tui.history import History

SOON_S = 48 * 3600.0
"""A disk that is full later than this, at the present rate, is no matter of today."""


LEAST_RATE = 1 << 20
"""Bytes an hour; what changes by less stands still."""


def rate_words(disk: Disk, history: History | None) -> str:
    """ "-1.2 GiB/h": how free space changes; empty where that is not known yet, and where it stands still."""
    rate = history.disk_rate(disk) if history else None
    if rate is None or abs(rate) * 3600 < LEAST_RATE:
        return ""
    return f"{'+' if rate > 0 else '-'}{bytes_label(abs(rate) * 3600)}/h"


def filling_words(disk: Disk, history: History | None) -> str:
    """ "full in 3 h 20 min at -1.2 GiB/h" while a disk fills; empty where it does not."""
    full_in_s = history.full_in_s(disk) if history else None
    rate = history.disk_rate(disk) if history else None
    if full_in_s is None or rate is None or full_in_s > SOON_S:
        return ""
    return f"full in {duration_label(full_in_s)} at {bytes_label(-rate * 3600)}/h"


def disk_lines(disk: Disk, width: int, name_width: int, history: History | None = None) -> list[Text]:
    """``/data  ━━━━━───  123 / 500 GiB`` (the bar is what is used, the figures are free / total), and below a warning, or
    when it is full."""
    name = fit(clean_line(disk.mount or disk.path), name_width)
    warning = disk_warning(disk)
    free = share(disk.free_bytes, disk.total_bytes)
    amounts = f"{pair_label(disk.free_bytes, disk.total_bytes):>15}"
    rate = rate_words(disk, history)
    if rate and width - name_width - len(amounts) - len(rate) - 4 >= 8:
        amounts += f"  {rate}"
    room = max(3, min(60, width - name_width - len(amounts) - 2))
    line = Text(f"{name:<{name_width}} ", TEXT)
    line.append_text(bar_text(bar(None if free is None else 1 - free, room), WARN if warning else ACCENT))
    line.append(f" {amounts}", TEXT)
    words = " · ".join(filter(None, (warning, filling_words(disk, history))))
    return [line, Text(fit(f"  ▲ {words}", width), WARN)] if words else [line]


def disks_text(disks: list[Disk], width: int, history: History | None = None) -> Text:
    """All mounts, one or two lines each."""
    if not disks:
        return quiet("no disk was named")
    longest = max(len(clean_line(disk.mount or disk.path)) for disk in disks)
    name_width = min(longest, max(8, width - 15 - 2 - 8))
    return join([line for disk in disks for line in disk_lines(disk, width, name_width, history)])


class DisksPanel(Panel):
    TITLE = "Disks, free / total"
    disks: list[Disk] | None = None
    history: History | None = None

    def show(self, disks: list[Disk] | None, history: History | None = None) -> None:
        self.disks, self.history = disks, history
        self.changed((disks, [(filling_words(disk, history), rate_words(disk, history)) for disk in disks or []]))

    def draw(self, width: int) -> Text:
        return quiet("asking…") if self.disks is None else disks_text(self.disks, width, self.history)
