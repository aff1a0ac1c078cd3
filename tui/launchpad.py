"""Starts the console on a terminal, and says in plain words why it cannot where there is none."""

from __future__ import annotations

import getpass
import os
import signal
import sys


def open_console(host: str, *, local: bool, workspace: str, python: str | None, run_id: str = "") -> int:
    """Run the console until it is left; returns the exit code."""
    # Textual reads from stdin and draws on stderr.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        sys.stderr.write("The console needs a terminal; without one use: eagle3-tui check|launch|runs|watch|stop.\n")
        return 2
    # Over SSH every frame costs; nothing here moves for show.
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_FPS", "15")
    from tui.app import ConsoleApp
    from tui.catalog import Catalog, default_path
    from tui.connect import connector, preload
    from tui.hangup import end_with_terminal

    app = ConsoleApp(
        connector(host, local=local, python=python),
        host="this machine" if local else host,
        workspace=workspace,
        actor=getpass.getuser(),
        catalog=Catalog(default_path()),
        preload=preload,
        run_id=run_id,
        terminal_is_there=sys.stdin.isatty,
    )
    end_with_terminal(sys.stdin.fileno())
    # Told to end, the console still gives the terminal back as it was.
    signal.signal(signal.SIGTERM, lambda *_: app.exit(return_code=128 + signal.SIGTERM))
    app.run()
    return app.return_code or 0
