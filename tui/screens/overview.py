"""Overview: the machine at a glance, and how old each part of the picture is."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from tui.formats import age_label, duration_label, fit, one_line
from tui.keymap import key_of
from tui.machine_words import host_words
from tui.screens.base import bindings_of
from tui.screens.runs_list import RunsListScreen
from tui.standing import alerts_of, parts_of
from tui.themes.palette import ACCENT, BAD, MUTED, WARN
from tui.widgets.disks import DisksPanel
from tui.widgets.gpus import GpusPanel
from tui.widgets.hosts import Group, HostList, folds
from tui.widgets.panel import caption
from tui.widgets.runs_table import RunsTable
from tui.widgets.vllm import VllmPanel

if TYPE_CHECKING:
    from eagle3.core.records import Probe
    from tui.state import Console

ROOMY_ROWS = 34
"""A screen of so many rows has room for a line of alerts; where it has not, the panels tell each by itself."""
MIN_RUNS_ROWS = 5
"""Rows that the list of runs keeps where cards and servers are many."""
SMALL_ROWS = 24
"""On a screen of fewer rows with one host, the runs keep SMALL_RUNS_ROWS and the rest goes without: three runs and the bar to
scroll sideways."""
SMALL_RUNS_ROWS = 7
MIN_MACHINE_ROWS = 4
MOST_VLLM_ROWS = 8
NOTICE_ROWS = 3
"""At most; both as in the style sheet."""


def rows_for(room: int, machine: int, vllm: int) -> tuple[int, int]:
    """The rows of the cards and disks, and those of the servers, of ``room`` rows above the list of runs and of what each would
    like to have. Where they do not fit the servers go first, then the machine: the runs stay."""
    servers = min(vllm, MOST_VLLM_ROWS)
    if servers + MIN_MACHINE_ROWS > room:
        servers = 0
    rows = min(max(5, machine), room - servers)
    return (rows if rows >= MIN_MACHINE_ROWS else 0), servers


def notice(console: Console, now: float) -> Text:
    """The one line under the title where something keeps the picture from being fresh; else nothing."""
    link = console.link
    if link.status == "refused":
        return Text(f"✗ {link.reason or 'The host refused us.'} {key_of('everywhere', 'reconnect')} tries again.", BAD)
    if link.status == "down":
        lasted = duration_label(now - link.since)
        below = " What stands below is what was last known." if console.probe.at is not None or console.runs else ""
        return Text(f"✗ {link.reason or 'The link is down.'} Down for {lasted}; trying again.{below}", BAD)
    if console.probe.problem:
        return Text(f"▲ {console.probe.problem}", WARN)
    if link.status == "degraded":
        return Text(f"▲ {link.reason or 'The link is slow.'}", WARN)
    if console.since:
        return Text(f"{console.since}  {key_of('everywhere', 'step_back')} dismisses.", ACCENT)
    if console.probe.at is None:
        return Text(
            "Connecting; nothing is known of this machine yet." if link.status == "connecting" else "Asking the machine…", MUTED
        )
    return Text("")


def also_here(probe: Probe, me: str) -> str:
    """ "bob watches pilot-1": who else looks at this workspace now; a second console of the same person counts as one."""
    others = {}
    for watcher in probe.watchers:
        if watcher.actor and watcher.actor != me:
            others[one_line(watcher.actor, 30)] = one_line(watcher.watching, 40)
    return ", ".join(f"{who} watches{f' {what}' if what else ''}" for who, what in list(others.items())[:3])


class OverviewScreen(RunsListScreen):
    HERE = "overview"
    BINDINGS = bindings_of("overview")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen: dict[str, bool] = {}
        """Groups that the operator folded (True) or opened (False)."""
        self._folded: dict[str, bool] = {}

    def action_services(self) -> None:
        from tui.screens.servers import ServersScreen

        self.console_app.ask_once(ServersScreen())
        self.console_app.session.ask_services()

    def body(self) -> ComposeResult:
        hosts = HostList(id="hosts")
        hosts.display = False
        yield hosts
        yield Static(id="notice")
        with Horizontal(id="machine"):
            yield GpusPanel(id="gpus")
            yield DisksPanel(id="disks")
        yield VllmPanel(id="vllm")
        yield self.runs_table()

    def _hosts(self, now: float) -> int:
        """Show the hosts where there are several; gives the rows that they take."""
        app, hosts = self.console_app, self.query_one(HostList)
        if len(app.members) < 2:
            hosts.display = False
            return 0
        if not hosts.display:
            hosts.display = True
            hosts.focus()
        opened = {name: 1 + len(parts_of(member.console, now)) for name, member in app.members.items()}
        room = max(len(opened) + 2, (self.size.height - 2) // 2)
        self._folded = folds(list(opened), self._chosen, opened, room)
        hosts.show([Group(member.console, self._folded[name], member is app.front) for name, member in app.members.items()], now)
        least = 2 + MIN_RUNS_ROWS + 5 + 3 + 1
        rows = max(3, min(hosts.rows, max(room, self.size.height - least)))
        if self.size.height < ROOMY_ROWS:
            rows = min(rows, max(4, self.size.height - least))
        hosts.styles.height = rows
        return rows

    def action_fold(self) -> None:
        """The group of the host in front."""
        self._fold(self.console_app.front.name)

    def action_fold_all(self) -> None:
        """All groups: open where any is folded."""
        self._chosen = dict.fromkeys(self._folded, not any(self._folded.values()))
        self.refresh_known()

    def _fold(self, name: str) -> None:
        self._chosen[name] = not self._folded.get(name, True)
        self.refresh_known()

    def on_host_list_folded(self, message: HostList.Folded) -> None:
        message.stop()
        self._fold(message.host)

    def on_host_list_brought(self, message: HostList.Brought) -> None:
        message.stop()
        self.console_app.bring(message.host)

    def present(self, console: Console, now: float) -> None:
        taken = self._hosts(now)
        probe = console.probe.value
        line = notice(console, now)
        app = self.console_app
        if app.replay_of:
            played = Text(f"{app.replay_of[0].upper()}{app.replay_of[1:]}. {app.ended_words}", ACCENT)
            awaited = console.link.status in ("connecting", "up") and console.probe.at is None
            line = played if awaited or not line.plain else Text.assemble(played, "\n", line)
        elif not line.plain and probe is not None:
            others = also_here(probe, self.console_app.session.actor or getpass.getuser())
            room = self.size.width - 4 - (len(others) + 3 if others else 0)
            line = Text(fit(host_words(probe.host), room), MUTED)
            line.append(f" · {others}" if others else "", ACCENT)
        known = console.probe
        age, stale = known.age(now), console.stale(known.at, now)
        gpus, disks, vllm = self.query_one(GpusPanel), self.query_one(DisksPanel), self.query_one(VllmPanel)
        gpus.show(probe.gpu if probe else None, console.history)
        disks.show(probe.disks if probe else None, console.history)
        vllm.show(probe.vllm if probe else None, console.history)
        for panel in (gpus, disks, vllm):
            panel.age(age, stale)
        width = self.size.width - 4
        told = min(NOTICE_ROWS, max(1, sum(-(-len(row) // width) for row in line.plain.split("\n")))) if width > 0 else 1
        runs = SMALL_RUNS_ROWS if self.size.height < SMALL_ROWS and not taken else MIN_RUNS_ROWS
        room = self.size.height - 2 - told - runs - taken
        machine, servers = rows_for(room, max(gpus.rows, disks.rows), vllm.rows)
        self.query_one("#machine").styles.height = machine or 1
        self.query_one("#machine").display, vllm.display = machine > 0, servers > 0
        if len(app.members) == 1 and (alerts := alerts_of(console, now)):
            words = (fit(f"▲ {'; '.join(alerts)}", width), WARN)
            if self.size.height >= ROOMY_ROWS:
                line = Text.assemble(line, "\n" if line.plain else "", words)
            elif not (machine and servers) and told == 1 and not notice(console, now).plain:
                line = Text.assemble(words)  # what would have told them is not there
        widget = self.query_one("#notice", Static)
        if widget.content != line:
            widget.update(line)
        table = self.query_one(RunsTable)
        table.show(console, now)
        caption(table, subtitle=runs_age(console, now))
        table.set_class(bool(console.runs) and stale and known.at is not None, "stale")


def runs_age(console: Console, now: float) -> str:
    """How many runs and how old the list is."""
    if not console.runs:
        return f"none yet · {key_of('everywhere', 'pilot')} launches the pilot" if console.runs_known else "not known yet"
    newest = max((known.at for known in console.runs.values() if known.at is not None), default=None)
    stale = "stale · " if console.stale(newest, now) else ""
    return f"{len(console.runs)} · {stale}{age_label(None if newest is None else now - newest)}"
