"""Starts the console with a watch on its event loop, and writes down how long it did not answer.

Started as ``observed.py FILE ARGUMENTS…``: FILE gets a line ``when gap_s`` for every gap over LEAST_S, as it happens. Asking the
loop costs something, so no other figure comes from such a console.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

LEAST_S = 0.02
EVERY_S = 0.01


class Watched(asyncio.DefaultEventLoopPolicy):
    """Watches the loop of the main thread, the console's own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._watch, args=(loop,), daemon=True).start()
        return loop

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        answered = threading.Event()
        with open(self._path, "a", buffering=1) as file:  # noqa: PTH123 - line by line
            while not loop.is_closed():
                time.sleep(EVERY_S)
                answered.clear()
                asked = time.perf_counter()
                try:
                    loop.call_soon_threadsafe(answered.set)
                except RuntimeError:
                    return  # closed between the two lines
                if not answered.wait(60.0) or time.perf_counter() - asked > LEAST_S:
                    file.write(f"{time.time():.3f} {time.perf_counter() - asked:.4f}\n")


def main() -> None:
    asyncio.set_event_loop_policy(Watched(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    from tui.start import main as start

    start()


if __name__ == "__main__":
    main()
