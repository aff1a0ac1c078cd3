"""A picture of a screen without a terminal: connect, wait until the run has been read, write the SVG.

``eagle3-tui picture --local RUN_ID OUT.svg`` made the picture in the README; the Readiness screen needs no run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tui.app import ConsoleApp
from tui.connect import connector
from tui.formats import one_line

LIMIT_S = 90.0


def take(
    host: str, out: Path, *, local: bool, workspace: str, python: str | None, run_id: str, screen: str, size: tuple[int, int]
) -> int:
    """Write ``out``. Returns 0; 3 where the run (or the report, where no run is named) could not be read in time and 1 where
    the file could not be written, with the reason on stderr."""
    app = ConsoleApp(
        connector(host, local=local, python=python), host="this machine" if local else host, workspace=workspace, run_id=run_id
    )
    return asyncio.run(_take(app, out, screen, size))


async def _take(app: ConsoleApp, out: Path, screen: str, size: tuple[int, int]) -> int:
    problem = ""
    async with app.run_test(size=size) as pilot:
        deadline = time.monotonic() + LIMIT_S
        gone = False
        while not (_whole(app) and (screen != "readiness" or _judged(app))):
            if time.monotonic() > deadline:
                state = app.console_state
                why = (state.open_run.problem if state.open_run else "") or state.probe.problem or state.link.reason
                what = "The readiness" if screen == "readiness" else "The run"
                sys.stderr.write(f"{what} could not be read within {LIMIT_S:.0f} s: {one_line(why) or 'no answer'}.\n")
                return 3
            if screen == "readiness" and not gone and app.console_state.link.status == "up":
                app.action_go(screen)  # being there asks for the facts
                gone = True
            await pilot.pause(0.2)
        if screen != "run":
            app.action_go(screen)
        # Two turns of the clock: plots that waited for their turn are drawn, and the layout has settled.
        await pilot.pause(3.0)
        app.screen.set_focus(None)
        await pilot.pause()
        try:
            app.export(out)
        except OSError as error:
            problem = f"The picture cannot be written to {out}: {error.strerror or error}.\n"
    # Said here, where Textual no longer holds the streams.
    sys.stderr.write(problem)
    return 1 if problem else 0


def _whole(app: ConsoleApp) -> bool:
    view = app.console_state.open_run
    return app.console_state.probe.at is not None and (not app.first_run or (view is not None and view.heard))


def _judged(app: ConsoleApp) -> bool:
    view, _ = app.checking.current()
    return view is not None and view.report is not None and view.asking is None
