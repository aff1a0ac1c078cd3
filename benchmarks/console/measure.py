"""The part ``console``: what it costs to keep the console open, beside three peers on the same terminal."""

from __future__ import annotations

import asyncio
import os

from benchmarks.console import backlog, hardship, ours, peers
from benchmarks.figures import Figure, Figures
from benchmarks.link.place import Place
from benchmarks.options import Options


def measure(options: Options) -> Figures:
    """All of them, one after another; ours last, since the runs are stopped for it."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> Figures:
    load = os.getloadavg()[0]
    figures: Figures = {}
    async with Place() as place:
        await place.launch("second")
        figures |= await asyncio.to_thread(peers.measure, place, options)
        place.trust(place.sshd.port)
        figures |= await hardship.measure(place, options)
        figures |= await backlog.measure(place, options)
        figures |= await ours.measure(place, options)
    figures["load average, before and after"] = Figure.of([load, os.getloadavg()[0]], "processes")
    return figures
