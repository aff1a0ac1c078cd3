"""The vLLM servers of the container in full: unit or process, state and since when, command line, environment."""

from __future__ import annotations

import shlex
import time

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from eagle3.core.records import Service, Services
from tui.formats import one_line
from tui.screens.reading import ReadingScreen
from tui.themes.palette import GOOD, MUTED, TEXT, WARN


def servers_text(found: Services | None, problem: str) -> Text:
    """Everything that is known of the servers; remote text is text. Secrets were hidden in the container already."""
    if found is None:
        return Text(problem or "Asking the container …", WARN if problem else MUTED)
    text = Text()
    if found.systemd:
        text.append(f"Units are not known: {one_line(found.systemd)}\n\n", MUTED)
    for service in found.services:
        text.append_text(_service(service))
    if not found.services:
        text.append("No vLLM server was found, by unit or in the process table.", MUTED)
    return text


def _service(service: Service) -> Text:
    text = Text()
    text.append("● " if service.live else "■ ", GOOD if service.live else MUTED)
    text.append(f"{one_line(service.name, 200)}\n", f"bold {TEXT}")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(service.since)) if service.since else "an unknown time"
    rows = [
        ("state", f"{service.state or 'unknown'} since {since}"),
        ("process", f"pid {service.pid}, user {service.user}" if service.pid else "none"),
        ("address", service.url),
        ("run", service.run_id),
        ("command", shlex.join(service.command)),
    ]
    for label, words in rows:
        if words:
            text.append(f"  {label:<12}", MUTED)
            text.append(f"{one_line(words, 4000)}\n", TEXT)
    for name, value in sorted(service.environment.items()):
        text.append(f"  {one_line(name, 60)}=", MUTED)
        text.append(f"{one_line(value, 500)}\n", MUTED)
    return text.append("\n")


class ServersScreen(ReadingScreen):
    OPENED_BY, HEADING, SHAPE = ("overview", "services"), "vLLM servers", "tall wide"

    def page(self) -> VerticalScroll:
        return VerticalScroll(Static(servers_text(None, ""), id="servers"))

    def show(self, found: Services | None, problem: str) -> None:
        self.query_one("#servers", Static).update(servers_text(found, problem))
