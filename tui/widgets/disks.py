"""Free space of each mount, and a word where it is low."""

from __future__ import annotations

from rich.text import Text

from eagle3.core.records import Disk
from tui.formats import bar, clean_line, fit, pair_label, share
from tui.machine_words import disk_warning
from tui.themes.palette import ACCENT, TEXT, WARN
from tui.widgets.panel import Panel, bar_text, join, quiet


def disk_lines(disk: Disk, width: int, name_width: int) -> list[Text]:
    """``/data  ━━━━━───  123 / 500 GiB`` (the bar is what is used, the figures are free / total), and a warning below."""
    name = fit(clean_line(disk.mount or disk.path), name_width)
    warning = disk_warning(disk)
    free = share(disk.free_bytes, disk.total_bytes)
    amounts = f"{pair_label(disk.free_bytes, disk.total_bytes):>15}"
    room = max(3, min(60, width - name_width - len(amounts) - 2))
    line = Text(f"{name:<{name_width}} ", TEXT)
    line.append_text(bar_text(bar(None if free is None else 1 - free, room), WARN if warning else ACCENT))
    line.append(f" {amounts}", TEXT)
    return [line, Text(fit(f"  ▲ {warning}", width), WARN)] if warning else [line]


def disks_text(disks: list[Disk], width: int) -> Text:
    """All mounts, one or two lines each."""
    if not disks:
        return quiet("no disk was named")
    longest = max(len(clean_line(disk.mount or disk.path)) for disk in disks)
    name_width = min(longest, max(8, width - 15 - 2 - 8))
    return join([line for disk in disks for line in disk_lines(disk, width, name_width)])


class DisksPanel(Panel):
    TITLE = "Disks, free / total"
    disks: list[Disk] | None = None

    def show(self, disks: list[Disk] | None) -> None:
        self.disks = disks
        self.changed(disks)

    def draw(self, width: int) -> Text:
        return quiet("asking…") if self.disks is None else disks_text(self.disks, width)
