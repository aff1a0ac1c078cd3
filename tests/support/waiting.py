"""Waiting for something to become true, with a deadline instead of a fixed sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LIMIT_S = 30.0


async def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Return as soon as ``condition`` holds; AssertionError naming ``what`` at the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    for _ in iter(condition, True):
        assert loop.time() < deadline, f"waited {limit_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.02)
