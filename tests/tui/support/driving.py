"""Driving the console in tests: wait for what should be seen, read the screen as text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from tui.app import ConsoleApp

LIMIT_S = 30.0


def seen(app: ConsoleApp) -> str:
    """The screen as a person reads it."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], true: Callable[[], bool], what: str) -> None:
    """Wait until ``true()``; fails with the screen after a generous limit."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        assert time.monotonic() < deadline, f"waited in vain for {what}; the screen was:\n{seen(app)}"
        await pilot.pause(0.02)
    await pilot.pause()


async def until_seen(pilot: Pilot[Any], *texts: str) -> str:
    """Wait until every text is on the screen, and return the screen."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await until(pilot, lambda: all(text in seen(app) for text in texts), " and ".join(repr(text) for text in texts))
    return seen(app)
