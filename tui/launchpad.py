"""Starts the console on a terminal, and says in plain words why it cannot where there is none."""

from __future__ import annotations

import getpass
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui.keymap import RebindError, rebind
from tui.settings import Settings, SettingsError, default_path, load

if TYPE_CHECKING:
    from tui.app import ConsoleApp
    from tui.catalog import Catalog
    from tui.ports import Connect
    from tui.recording import Recording

THIS_MACHINE = "this machine"
"""The name under which ``--local`` is shown."""


def chosen(path: Path, options: Mapping[str, Any]) -> tuple[Settings, str]:
    """The settings with what the command line says over them, and a sentence on what of them cannot be used."""
    problem = ""
    try:
        settings = load(path)
        rebind(settings.keys)
    except (SettingsError, RebindError) as error:
        settings, problem = Settings(), str(error)
    return replace(settings, **{name: value for name, value in options.items() if value}), problem


def open_console(
    hosts: Sequence[str],
    *,
    local: bool,
    workspace: str,
    python: str | None,
    run_id: str = "",
    options: Mapping[str, object] | None = None,
    record_to: Path | None = None,
) -> int:
    """Run the console on ``hosts`` (none, and not ``local``: the operator chooses) until it is left; returns the exit code.
    ``options`` win over the operator's settings."""
    if not on_terminal():
        return 2
    settings, problem = chosen(default_path(), options or {})
    calm(settings)
    # After the keys are settled: the bindings of the screens come from the one table.
    from tui import catalog
    from tui.app import ConsoleApp
    from tui.connect import connector, preload, preload_rest
    from tui.fleet import Place

    kept = catalog.Catalog(catalog.default_path())
    names = [THIS_MACHINE] if local else list(hosts) or _choose(kept, settings)
    known = set() if local or hosts else set(known_hosts(kept))  # the others were typed in the list's own field
    if not names:
        kept.close()
        return 0

    def dial(name: str) -> Connect:
        return connector("" if name == THIS_MACHINE else name, local=name == THIS_MACHINE, python=python)

    app = ConsoleApp(
        dial(names[0]),
        host=names[0],
        named=bool(known) and names[0] not in known,
        others=[Place(name, dial(name), bool(known) and name not in known) for name in names[1:]],
        dial=dial,
        hosts=lambda: known_hosts(kept),
        workspace=workspace,
        worker_python=python or "",  # in the spec, or a report about another interpreter would be taken for this one's
        actor=getpass.getuser(),
        catalog=kept,
        preload=(preload, preload_rest),
        run_id=run_id,
        terminal_is_there=sys.stdin.isatty,
        poll_s=settings.poll_s,
        settings=settings,
        problem=problem,
        record_to=record_to,
    )
    return run(app)


def replay(path: Path, speed: float, *, run_id: str = "", options: Mapping[str, object] | None = None) -> int:
    """Play a recording until it is left; returns the exit code."""
    if not on_terminal():
        return 2
    settings, problem = chosen(default_path(), options or {})
    calm(settings)
    from tui.recording import RecordingError, load

    try:
        recording = load(path)
    except RecordingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return run(player(recording, speed, settings, problem, run_id, sys.stdin.isatty))


def player(
    recording: Recording,
    speed: float,
    settings: Settings,
    problem: str = "",
    run_id: str = "",
    terminal_is_there: Callable[[], bool] = lambda: True,
) -> ConsoleApp:
    """The console on a recording: its own clock, no connection, no catalogue, no calls to the operator."""
    from tui.app import ConsoleApp
    from tui.fleet import Place
    from tui.replaying import ReplayClock, replayed, title

    clock = ReplayClock(recording, speed)
    places = [Place(host, replayed(host, recording, clock)) for host in recording.hosts]
    app = ConsoleApp(
        places[0].connect, host=places[0].name, others=places[1:], clock=clock, poll_s=recording.poll_s, speed=speed,
        run_id=run_id, terminal_is_there=terminal_is_there, problem=problem, replay_of=title(recording),
        settings=replace(settings, alerts=replace(settings.alerts, kinds=())),
    )  # fmt: skip
    app.cut = recording.problem
    return app


def on_terminal() -> bool:
    """Whether there is a terminal; where not, that is said. Textual reads from stdin and draws on stderr."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        return True
    sys.stderr.write("The console needs a terminal; without one use: eagle3-tui check|launch|runs|watch|stop.\n")
    return False


def calm(settings: Settings) -> None:
    """Over SSH every frame costs, so nothing moves for show unless the operator's environment says so; with reduced motion
    nothing does in any case. To be called before Textual is imported, which reads this once."""
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if settings.reduced_motion:
        os.environ["TEXTUAL_ANIMATIONS"] = "none"
    os.environ.setdefault("TEXTUAL_FPS", "15")
    # How long an Esc waits for the rest of a sequence (ms). Textual's 100 make every dialog close late.
    os.environ.setdefault("ESCDELAY", "25")


def run(app: ConsoleApp) -> int:
    """Run the console on this terminal until it is left or told to end."""
    from tui.hangup import end_with_terminal

    end_with_terminal(sys.stdin.fileno())
    # Told to end, the console still gives the terminal back as it was.
    signal.signal(signal.SIGTERM, lambda *_: app.exit(return_code=128 + signal.SIGTERM))
    app.run()
    return app.return_code or 0


def known_hosts(kept: Catalog) -> list[str]:
    """Hosts to choose from: those looked at before, the last one first, those of the ssh_config, and this machine."""
    from remote.config import host_names
    from remote.settings import Settings as LinkSettings

    return list(dict.fromkeys([*kept.hosts(), *host_names(LinkSettings()), THIS_MACHINE]))


def _choose(kept: Catalog, settings: Settings) -> list[str]:
    from tui.screens.hosts import Chooser, HostChoice

    before = set(kept.hosts())
    choices = [HostChoice(name, "looked at before" if name in before else "") for name in known_hosts(kept)]
    return Chooser(choices, settings.theme, settings.ascii).run() or []
