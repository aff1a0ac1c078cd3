"""The vLLM servers seen in the container: health in a word, models, requests running and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tui.formats import clean_line, fit, number_label
from tui.history import History, Rates, sparkline
from tui.themes.palette import BAD, GOOD, MUTED, SERIES, TEXT, WARN
from tui.widgets.panel import Panel, join, quiet

if TYPE_CHECKING:
    from eagle3.core.records import VllmServer

HEALTH = {"ok": ("●", "healthy", GOOD), "down": ("✗", "down", BAD), "unknown": ("?", "unknown", WARN)}


def server_line(server: VllmServer, width: int) -> Text:
    symbol, word, colour = HEALTH[server.health]
    line = Text.assemble((f"{symbol} {word:<8}", colour), (clean_line(server.url).removeprefix("http://"), TEXT))
    models = ", ".join(clean_line(model, 60) for model in server.models)
    if models:
        line.append(f"  {models}", TEXT)
    if server.running is not None:
        line.append(f"  {server.running:.0f} running, {server.waiting or 0:.0f} waiting", MUTED)
    if server.health != "ok" and server.text:
        line.append(f"  {clean_line(server.text)}", MUTED)
    if server.run_id:
        line.append(f"  of {clean_line(server.run_id)}", MUTED)
    elif server.pid:
        line.append(f"  pid {server.pid}", MUTED)
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    return line


def work_line(server: VllmServer, rates: Rates, width: int) -> Text | None:
    """What the server did over the last minute: tokens, cache, and where it speculates the served acceptance, position by
    position. None where nothing is known."""
    words = []
    if rates.tok_s is not None:
        words.append(f"{number_label(rates.tok_s)} tokens/s")
    if server.kv_cache_usage is not None:
        words.append(f"KV cache {server.kv_cache_usage:.0%}")
    if server.extracting:
        words.append("extracts hidden states")
    line = Text(f"  {'  '.join(words)}", MUTED) if words else Text()
    if rates.accept_len is not None:
        line.append(f"  served length {number_label(rates.accept_len)} over {rates.drafts:,.0f} drafts  ", TEXT)
        for k, value in enumerate(rates.acc_pos[:8]):
            line.append(sparkline([value], 1, top=1.0), SERIES[min(k, len(SERIES) - 1)])
            line.append(f"{value:.0%} ", MUTED)
    if not line.plain.strip():
        return None
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    return line


def vllm_text(servers: list[VllmServer], width: int, history: History | None = None) -> Text:
    if not servers:
        return quiet(fit("no vLLM server is running", width))
    lines = []
    for server in servers:
        lines.append(server_line(server, width))
        work = work_line(server, history.rates(server.url), width) if history else None
        if work is not None:
            lines.append(work)
    return join(lines)


class VllmPanel(Panel):
    TITLE = "vLLM servers"
    servers: list[VllmServer] | None = None
    history: History | None = None

    def show(self, servers: list[VllmServer] | None, history: History | None = None) -> None:
        self.servers, self.history = servers, history
        self.changed((servers, [history.rates(server.url) for server in servers or []] if history else None))

    def draw(self, width: int) -> Text:
        return quiet("asking…") if self.servers is None else vllm_text(self.servers, width, self.history)
