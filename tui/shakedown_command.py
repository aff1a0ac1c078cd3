"""``eagle3-tui shakedown``: a run's full shape for some minutes in the container, told here as it goes."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError
from tui import plan
from tui.check_command import Judged, gathered
from tui.formats import one_line

if TYPE_CHECKING:
    from tui.oneshot import Talk


async def shakedown(talk: Talk, judged: Judged, run_id: str, secrets: Mapping[str, str]) -> int:
    """Start it, or join the one of that id, and tell it to its end. 1 where something was not proved. It goes on there where
    this command is ended. ``secrets`` (name → value) are for the worker's environment alone."""
    spec, _ = await gathered(talk, judged)
    if problems := estimate(spec).problems:
        raise SpecError(problems[0])
    name = run_id or plan.new_run_id("shakedown", time.time())
    await talk.container.shakedown(spec, name, getpass.getuser(), secret_env=secrets)
    again = "" if run_id else f"; --id {name} joins it again"
    talk.note(f"The shakedown {name} goes on by itself on {talk.place.name}{again}.")
    report: dict[str, Any] = {}
    async for line in talk.container.follow_job(name):
        found = line.more.get("report")
        if isinstance(found, dict):
            report = found
        elif line.text and not (report and "code" in line.more):
            talk.note(one_line(line.text, 300))
        if not report and (log := str(line.more.get("log") or "").strip()):
            talk.note(one_line(log.splitlines()[-1], 300))
    if talk.as_json:
        talk.say("", report)
    return 0 if report.get("passed") is True else 1
