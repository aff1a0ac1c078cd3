"""The part ``link``: connect and probe against ``ssh``, a poll's round trips, a day's bytes, a long backlog."""

from __future__ import annotations

import asyncio
import os

from benchmarks.figures import Figure, Figures
from benchmarks.link import backlog, connect, watch
from benchmarks.link.place import Place
from benchmarks.options import Options


def measure(options: Options) -> Figures:
    """All of them, one after another, on a real sshd of this machine."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> Figures:
    load = os.getloadavg()[0]
    async with Place() as place:
        figures = {
            **await connect.measure(place, options.rounds(9)),
            **await backlog.measure(place, 20_000 if options.quick else 1_000_000, options.rounds(3)),
            **await watch.measure(place, options.watch_s),
        }
    figures["load average, before and after"] = Figure.of([load, os.getloadavg()[0]], "processes")
    return figures
