"""Calling the operator: bell, desktop notification, a command of theirs; each alert once, and not in their quiet hours."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tui.alerting import Alert, is_quiet, quiet_span
from tui.formats import one_line

if TYPE_CHECKING:
    from tui.settings import AlertSettings

COMMAND_LIMIT_S = 20.0


class Caller:
    """``ring`` rings the bell, ``notify`` shows a desktop notification, ``tell`` says in the console that the command failed."""

    def __init__(
        self,
        settings: AlertSettings,
        *,
        host: str,
        clock: Callable[[], float],
        ring: Callable[[], None],
        notify: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._host, self._clock = settings, host, clock
        self._ring, self._notify, self._tell = ring, notify, tell
        self._told: set[str] = set()
        self._commands: set[asyncio.Task[None]] = set()
        self._complained = False

    def take(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Call for what is new; gives the new ones, which the console shows in any case."""
        fresh = [alert for alert in alerts if alert.key not in self._told and alert.kind in self._settings.kinds]
        self._told |= {alert.key for alert in fresh}
        local = time.localtime(self._clock())
        if fresh and not is_quiet(quiet_span(self._settings.quiet_hours), local.tm_hour * 60 + local.tm_min):
            self._call(fresh)
        return fresh

    def forget(self, *keys: str) -> None:
        """These facts are over: told again when they come back."""
        self._told.difference_update(keys)

    def _call(self, alerts: list[Alert]) -> None:
        if self._settings.bell:
            self._ring()
        for alert in alerts:
            if self._settings.desktop:
                self._notify(alert.text)
            if self._settings.command:
                task = asyncio.create_task(self._run(alert))
                self._commands.add(task)
                task.add_done_callback(self._commands.discard)

    async def _run(self, alert: Alert) -> None:
        about = json.dumps({"v": 1, "kind": alert.kind, "host": self._host, "text": alert.text, "t": self._clock()})
        problem = ""
        try:
            child = await asyncio.create_subprocess_exec(
                *self._settings.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "EAGLE3_ALERT_KIND": alert.kind, "EAGLE3_ALERT_TEXT": alert.text},
            )
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            try:
                _, said = await asyncio.wait_for(child.communicate(about.encode()), COMMAND_LIMIT_S)
                if child.returncode:
                    problem = one_line(said.decode("utf-8", "replace"), 200) or f"exit code {child.returncode}"
            except TimeoutError:
                child.kill()
                problem = f"it took longer than {COMMAND_LIMIT_S:.0f} s"
        if problem and not self._complained:
            self._complained = True
            self._tell(f"The alert command {self._settings.command[0]} failed: {problem}. Mend it in settings.toml.")

    async def close(self) -> None:
        """Let go of commands that still run."""
        for task in self._commands:
            task.cancel()
        await asyncio.gather(*self._commands, return_exceptions=True)
