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
    """Two consoles watch the same run, one with compression as we set it, one with "Compression no" in its ssh_config."""
    async with FaultProxy(place.sshd.port) as line, FaultProxy(place.sshd.port) as plain:
        compressed, whole = await asyncio.gather(
            _watch(place, line, duration_s, compress=True), _watch(place, plain, duration_s, compress=False)
        )
    packets = sum(window[1] for window in compressed)
    return {
        "24 h at 1 Hz, towards the console": _day(compressed, duration_s, "<= 40"),
        "the same with IP and TCP headers": Figure(
            _day(compressed, duration_s).value + packets * HEADERS_BYTES * DAY_S / duration_s / MB, "MB"
        ),
        "the same where ssh_config forbids compression": _day(whole, duration_s),
    }


def _day(windows: list[tuple[int, int]], duration_s: float, target: str | None = None) -> Figure:
    """From bytes and packets of each window; the first holds the connect and the backlog, so it counts once a day."""
    window_s = duration_s / len(windows)
    first, *rest = (size for size, _ in windows)
    days = [(first + size * (DAY_S / window_s - 1)) / MB for size in rest or [first]]
    return Figure(sum(days) / len(days), "MB", target, len(days), (min(days), max(days)))


async def _watch(place: Place, line: FaultProxy, duration_s: float, *, compress: bool) -> list[tuple[int, int]]:
    """Bytes and packets towards the console, window by window."""
    windows: list[tuple[int, int]] = []
    count = max(2, round(duration_s / WINDOW_S))
    async with place.container(line.port, compress=compress) as container:
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
