"""A day of watching one run at 1 Hz: bytes towards the console, measured for some minutes and extrapolated."""

from __future__ import annotations

import asyncio

from benchmarks.figures import Figure, Figures
from benchmarks.link.place import RUN_ID, Place
from tests.support.proxy import FaultProxy
from tui.session import FOLLOW_S

PROBE_S = 5.0
"""How often a console asks for GPUs, disks and vLLM, too."""
DAY_S = 86_400.0
MB = 1e6
WINDOW_S = 60.0
HEADERS_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps, for each packet that carries something."""


async def measure(place: Place, duration_s: float) -> Figures:
    """One console watches the run, as the Run screen does."""
    async with FaultProxy(place.sshd.port) as line:
        windows = await _watch(place, line, duration_s)
    packets = sum(window[1] for window in windows)
    day = _day(windows, duration_s, "<= 40")
    headers = packets * HEADERS_BYTES * DAY_S / duration_s / MB
    return {
        "24 h at 1 Hz, towards the console": day,
        "the same with Ethernet, IP and TCP headers": Figure(day.value + headers, "MB"),
        "packets a second": Figure(packets / duration_s, "1/s"),
    }


def _day(windows: list[tuple[int, int]], duration_s: float, target: str | None = None) -> Figure:
    """From bytes and packets of each window; the first holds the connect and the backlog, so it counts once a day."""
    window_s = duration_s / len(windows)
    first, *rest = (size for size, _ in windows)
    days = [(first + size * (DAY_S / window_s - 1)) / MB for size in rest or [first]]
    return Figure(sum(days) / len(days), "MB", target, len(days), (min(days), max(days)))


async def _watch(place: Place, line: FaultProxy, duration_s: float) -> list[tuple[int, int]]:
    """Bytes and packets towards the console, window by window."""
    windows: list[tuple[int, int]] = []
    count = max(2, round(duration_s / WINDOW_S))
    async with place.container(line.port) as container:
        rows = 0

        async def follow() -> None:
            nonlocal rows
            async for news in container.follow(RUN_ID, poll_s=FOLLOW_S, probe_s=PROBE_S):
                rows += len(news.rows)

        following = asyncio.create_task(follow())
        before = (0, 0)
        for _ in range(count):
            done, _pending = await asyncio.wait({following}, timeout=duration_s / count)
            if done:
                raise RuntimeError("the run that was watched has ended")
            now = (line.passed["to_client"], line.pieces["to_client"])
            windows.append((now[0] - before[0], now[1] - before[1]))
            before = now
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    if rows < duration_s * 0.8:
        raise RuntimeError(f"only {rows} rows came in {duration_s:.0f} s; the machine is too busy to measure this.")
    return windows
