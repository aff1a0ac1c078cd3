"""The vLLM servers seen in the container: health in a word, models, requests running and waiting."""

from __future__ import annotations

from rich.text import Text

from eagle3.core.records import VllmServer
from tui.formats import clean_line, fit
from tui.themes.palette import BAD, GOOD, MUTED, TEXT, WARN
from tui.widgets.panel import Panel, join, quiet

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


def vllm_text(servers: list[VllmServer], width: int) -> Text:
    if not servers:
        return quiet(fit("no vLLM server is running", width))
    return join([server_line(server, width) for server in servers])


class VllmPanel(Panel):
    TITLE = "vLLM servers"
    servers: list[VllmServer] | None = None

    def show(self, servers: list[VllmServer] | None) -> None:
        self.servers = servers
        self.changed(servers)

    def draw(self, width: int) -> Text:
        return quiet("asking…") if self.servers is None else vllm_text(self.servers, width)
