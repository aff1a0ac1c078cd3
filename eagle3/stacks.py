"""A stack dump on request: every Python process of a run writes its threads' stacks to the log when it gets SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal


def register() -> None:
    """From now on SIGUSR1 writes the stacks of all threads to descriptor 2, even where Python itself hangs.

    Called once by every ``python -m eagle3``, so also by each rank that torchrun starts. The runner sends the signal only
    to processes that have a handler for it: anything else would die of it.
    """
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=False)
