#!/usr/bin/env python3
"""A console to be killed: opens a container, launches a run and follows it, or stops it.

``a_console.py URL STATE_DIR SSH_CONFIG KNOWN_HOSTS VERB RUN_ID [WORKER]``; each row told is a line on stdout.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from eagle3.core.presets import resolve
from remote.container import Container, Settings


async def main(url: str, state: str, config: str, known: str, verb: str, run_id: str, worker: str = "") -> None:
    settings = Settings(state_dir=Path(state), ssh_config=Path(config), known_hosts=Path(known))
    async with Container(url, settings=settings) as container:
        if verb == "stop":
            await container.stop(run_id, actor="grace")
        if verb == "launch":
            spec = resolve("smoke", "smollm2-135m", "cpu", {"worker_python": worker, "grace_s": 5})
            await container.launch(spec, run_id, actor="ada")
        async for news in container.follow(run_id, poll_s=0.05):
            for row in news.rows:
                print(row.step, flush=True)


asyncio.run(main(*sys.argv[1:]))
