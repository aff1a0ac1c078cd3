"""GPU memory, one line each; or plainly that there is no GPU, or why it is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tui.formats import bar, bytes_label, clean_line, fit, pair_label, share
from tui.standing import holder_names
from tui.themes.palette import ACCENT, MUTED, TEXT, WARN
from tui.widgets.panel import Panel, bar_text, join, quiet

if TYPE_CHECKING:
    from eagle3.core.records import Gpu, GpuReport
    from tui.history import History

SPARK = 12
"""Columns of the last minutes' utilisation, where there is room."""


def gpu_line(gpu: Gpu, width: int, spark: str = "") -> Text:
    """``0 ━━━━━────  96 / 141 GiB  99% ▂▅█  61°C  420 W``; what does not fit is left out from the right."""
    amounts = f"{pair_label(gpu.memory_used_bytes, gpu.memory_total_bytes):>15}"
    minutes = f" {spark}" if spark.strip() and width >= 70 else ""
    extras = [
        f"{gpu.utilization_pct:3.0f}%{minutes}" if gpu.utilization_pct is not None else "",
        f"{gpu.temperature_c:3.0f}°C" if gpu.temperature_c is not None else "",
        f"{gpu.power_w:4.0f} W" if gpu.power_w is not None else "",
    ]
    shown: list[str] = []
    for extra in extras:
        if extra and width - 3 - len(amounts) - sum(len(e) + 2 for e in [*shown, extra]) >= 8:
            shown.append(extra)
    room = width - 3 - len(amounts) - sum(len(extra) + 2 for extra in shown)
    used = share(gpu.memory_used_bytes, gpu.memory_total_bytes)
    line = Text.assemble(
        (f"{gpu.index} ", MUTED), bar_text(bar(used, max(3, min(room, 60))), WARN if (used or 0) > 0.95 else ACCENT)
    )
    line.append(f" {amounts}", TEXT)
    for extra in shown:
        line.append(f"  {extra}", MUTED)
    return line


def trouble(gpu: Gpu, width: int) -> list[Text]:
    """What is wrong with a card, where something is: lost, memory errors, rows to be remapped, clocks held down."""
    words = []
    if gpu.lost:
        words.append("lost: fell off the bus; cordon and reboot")
    if gpu.ecc_uncorrected:
        words.append(f"{gpu.ecc_uncorrected} uncorrected memory errors")
    if gpu.remap_failed or gpu.remap_pending or gpu.retired_pending:
        words.append("memory to be remapped" if not gpu.remap_failed else "memory beyond repair")
    if gpu.throttle:
        words.append(f"clocks held down: {', '.join(clean_line(reason, 60) for reason in gpu.throttle)}")
    return [Text(fit(f"▲ GPU {gpu.index}: {'; '.join(words)}", width), WARN)] if words else []


def holders(gpu: Gpu, width: int) -> list[Text]:
    """Who holds the memory of a GPU, where the driver says so: a run by its name, another process by its number."""
    found = []
    for process in gpu.processes[:4]:
        who = clean_line(str(process.get("run_id") or process.get("name") or f"pid {process.get('pid', '?')}"), 40)
        used = process.get("used_bytes")
        found.append(f"{who} {bytes_label(used)}" if isinstance(used, int | float) else who)
    return [quiet(fit("    " + ", ".join(found), width))] if found else []


def gpu_text(report: GpuReport, width: int, history: History | None = None, *, roomy: bool = False) -> Text:
    """The panel's text for any report; where there is room (``roomy``) with who holds what."""
    reason = clean_line(report.text)
    if report.status == "none" or (report.status == "ok" and not report.gpus):
        lines = [Text.assemble(("– ", MUTED), ("no GPU", TEXT))]
        if reason and reason.lower().rstrip(".") != "no gpu":
            lines.append(quiet(fit(f"  {reason}", width)))
        lines.append(quiet("  runs use the cpu preset"))
        return join(lines)
    if report.status == "unknown":
        return join([Text.assemble(("? ", WARN), (fit(f"unknown: {reason or 'asking gave no answer'}", width - 2), TEXT))])
    names = sorted({clean_line(gpu.name) or "GPU" for gpu in report.gpus})
    head = f"{len(report.gpus)} × {', '.join(names)}" + (f" · driver {clean_line(report.driver)}" if report.driver else "")
    lines = [quiet(fit(head, width))]
    for gpu in report.gpus:
        lines += trouble(gpu, width)
        lines.append(gpu_line(gpu, width, history.spark(gpu.index, SPARK) if history else ""))
        if roomy:
            lines += holders(gpu, width)
    if not roomy and (names := holder_names(report.gpus)):
        lines.append(quiet(fit(f"held by {', '.join(names)}", width)))
    return join(lines)


class GpusPanel(Panel):
    TITLE = "GPU memory"
    report: GpuReport | None = None
    history: History | None = None

    def show(self, report: GpuReport | None, history: History | None = None) -> None:
        self.report, self.history = report, history
        sparks = [history.spark(gpu.index, SPARK) for gpu in report.gpus] if history and report else []
        self.changed((report, sparks))

    def draw(self, width: int) -> Text:
        if self.report is None:
            return quiet("asking…")
        return gpu_text(self.report, width, self.history, roomy=self.screen.has_class("-tall") and len(self.report.gpus) <= 8)
