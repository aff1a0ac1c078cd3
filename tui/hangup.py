"""The last resort of a console whose terminal is gone.

The app looks for its terminal once a second and ends in good order. But a terminal that was not read for a while has
Textual's event loop waiting for it, and then nobody looks: this thread does, and ends the process. Nothing is lost by
that, since runs are the container's and what the console remembers is written as it comes.
"""

from __future__ import annotations

import os
import select
import threading
import time

GRACE_S = 6.0
"""Seconds that the app has to end by itself."""


def end_with_terminal(descriptor: int, grace_s: float = GRACE_S) -> None:
    """From now on the process ends at the latest ``grace_s`` seconds after the terminal behind ``descriptor`` is gone."""
    threading.Thread(target=_watch, args=(descriptor, grace_s), name="hang-up", daemon=True).start()


def _watch(descriptor: int, grace_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always told; input is not ours to hear of
    poll.poll()
    time.sleep(grace_s)
    os._exit(1)
