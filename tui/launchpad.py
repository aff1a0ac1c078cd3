"""Starts the console on a terminal, and says in plain words why it cannot where there is none."""

from __future__ import annotations

import getpass
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tui.keymap import RebindError, rebind
from tui.settings import Settings, SettingsError, default_path, load


def chosen(path: Path, options: Mapping[str, object]) -> tuple[Settings, str]:
    """The settings with what the command line says over them, and a sentence on what of them cannot be used."""
    problem = ""
    try:
        settings = load(path)
        rebind(settings.keys)
    except (SettingsError, RebindError) as error:
        settings, problem = Settings(), str(error)
    return settings.model_copy(update={name: value for name, value in options.items() if value}), problem


def open_console(
    host: str, *, local: bool, workspace: str, python: str | None, run_id: str = "", options: Mapping[str, object] | None = None
) -> int:
    """Run the console until it is left; returns the exit code. ``options`` win over the operator's settings."""
    # Textual reads from stdin and draws on stderr.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        sys.stderr.write("The console needs a terminal; without one use: eagle3-tui check|launch|runs|watch|stop.\n")
        return 2
    # Over SSH every frame costs; nothing here moves for show.
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_FPS", "15")
    # How long an Esc waits for the rest of a sequence (ms). Textual's 100 make every dialog close late.
    os.environ.setdefault("ESCDELAY", "25")
    settings, problem = chosen(default_path(), options or {})
    # After the keys are settled: the bindings of the screens come from the one table.
    from tui import catalog
    from tui.app import ConsoleApp
    from tui.connect import connector, preload
    from tui.hangup import end_with_terminal

    app = ConsoleApp(
        connector(host, local=local, python=python),
        host="this machine" if local else host,
        workspace=workspace,
        worker_python=python or "",  # in the spec, or a report about another interpreter would be taken for this one's
        actor=getpass.getuser(),
        catalog=catalog.Catalog(catalog.default_path()),
        preload=preload,
        run_id=run_id,
        terminal_is_there=sys.stdin.isatty,
        poll_s=settings.poll_s,
        settings=settings,
        problem=problem,
    )
    end_with_terminal(sys.stdin.fileno())
    # Told to end, the console still gives the terminal back as it was.
    signal.signal(signal.SIGTERM, lambda *_: app.exit(return_code=128 + signal.SIGTERM))
    app.run()
    return app.return_code or 0
