"""Whether a server that runs still answers: its looks in, one word out. Pure.

``/health`` of vLLM answers 503 only for a dead engine; one that hangs stays at 200. So the tokens are watched as well: while
requests run, they must move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAILURES = 3
"""Looks in a row that fail before a server counts as dead."""


@dataclass(frozen=True)
class Look:
    """What a server showed at the moment ``t`` (seconds of a steady clock).

    ``health``: ok, ill (it says so itself, or refuses the connection) or slow (no answer in time). ``running``: requests in
    its hands; ``tokens``: read and generated since its start. None where it does not tell.
    """

    t: float
    health: Literal["ok", "ill", "slow"]
    running: float | None = None
    tokens: float | None = None
    said: str = ""


class Pulse:
    """Judges the looks of one server. ``silent_s``: how long no token may come while requests run."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._ill = 0
        self._silent: list[float] = []
        self._tokens: float | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the last look failed."""
        return self._ill > 0

    def take(self, look: Look) -> str:
        """Why the server counts as dead after this look; empty while it does not."""
        self._ill = self._ill + 1 if look.health == "ill" else 0
        if self._ill >= FAILURES:
            return f"its health check failed {self._ill} times in a row ({look.said})"
        moved = look.tokens is not None and look.tokens != self._tokens
        idle = look.health == "ok" and (look.running is None or look.tokens is None or not look.running)
        if look.tokens is not None:
            self._tokens = look.tokens
        if moved or idle:
            self._silent = []
            return ""
        self._silent.append(look.t)
        silent_s = look.t - self._silent[0]
        if len(self._silent) < FAILURES or silent_s < self._silent_s:
            return ""
        if look.running:
            return f"{look.running:.0f} requests run and no token has come for {silent_s:.0f} s (server.silent_timeout_s)"
        return f"it has answered no look for {silent_s:.0f} s (server.silent_timeout_s)"
