"""Limits and places of the link, in one value so that a test can shrink them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs


def default_state_dir() -> Path:
    """The console's own folder for what it remembers between starts, such as host keys."""
    return platformdirs.user_state_path("eagle3-console")


@dataclass(frozen=True)
class Settings:
    """Seconds throughout. ``clock`` is Unix time, which (unlike the monotonic clock) goes on while a laptop sleeps."""

    connect_limit_s: float = 20
    keepalive_s: float = 10
    keepalive_count: int = 3
    ping_every_s: float = 5
    ping_limit_s: float = 5
    pings_missed: int = 3
    """So many unanswered pings in a row, and the connection counts as lost."""
    backoff_first_s: float = 1
    backoff_most_s: float = 30
    wake_jump_s: float = 15
    """The wall clock ran this much further than the timer: the machine slept, so look at once."""
    state_dir: Path = field(default_factory=default_state_dir)
    ssh_config: Path | None = None
    """None: ``~/.ssh/config`` and then ``system_ssh_config``. One that is named is the only one read, as with ``ssh -F``."""
    system_ssh_config: Path = Path("/etc/ssh/ssh_config")
    known_hosts: Path | None = None
    """None: UserKnownHostsFile of the ssh_config, or ``~/.ssh/known_hosts``. Read, never written."""
    clock: Callable[[], float] = time.time
    random: Callable[[], float] = random.random

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row: full jitter below 1, 2, 4 … 30."""
        ceiling = min(self.backoff_most_s, self.backoff_first_s * 2.0 ** min(failures, 16))
        return max(0.05, ceiling * self.random())
