"""Memory after 10^6 metric rows and 10^6 lines of log, all of which pass through the console."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from benchmarks.console.ours import command, environment
from benchmarks.console.terminal import Terminal
from benchmarks.figures import Figure, Figures
from benchmarks.link import backlog
from benchmarks.link.place import Place
from benchmarks.options import Options

RUN_ID = "long"
BATCH = 5000
"""Lines of log that are written at once, five times a second."""
LIMIT_S = 900.0


async def measure(place: Place, options: Options) -> Figures:
    """The rows come by the key that asks for all of them, the lines as a log that grows."""
    return await asyncio.to_thread(_measure, place, 20_000 if options.quick else 1_000_000)


def _measure(place: Place, count: int) -> Figures:
    run = place.run_dir.parent / RUN_ID
    (run / "attempts/1").mkdir(parents=True)
    (run / "launch.json").write_text("{}")
    (run / "attempts/1/starting.json").write_text(json.dumps({"v": 1, "attempt": 1, "t": time.time()}))
    backlog.write(run / "metrics.jsonl", count)
    log = run / "attempts/1/run.log"
    log.write_text("begun\n")
    with Terminal(command(place, "--run", RUN_ID), environment(place)) as terminal:
        terminal.until(b"Loss")
        time.sleep(5.0)
        before = terminal.memory_mb()
        sizes = _all_rows(terminal)
        sizes += _log(terminal, log, count)
        after = terminal.memory_mb()
    half = sizes[len(sizes) // 2 :]
    return {
        f"memory after {count:,} rows and lines": Figure(after, "MB", "<= 150", len(sizes), (before, max(sizes))),
        "its growth in the second half": Figure(half[-1] - half[0], "MB", "<= 5", len(half)),
    }


def _all_rows(terminal: Terminal) -> list[float]:
    terminal.forget()
    terminal.send(b"A")
    sizes, deadline = [], time.perf_counter() + LIMIT_S
    quiet, cpu = 0, terminal.cpu_s()
    while quiet < 3 and time.perf_counter() < deadline:
        time.sleep(1.0)
        sizes.append(terminal.memory_mb())
        now = terminal.cpu_s()
        quiet, cpu = (quiet + 1 if now - cpu < 0.3 else 0), now
        terminal.forget()
    return sizes


def _log(terminal: Terminal, log: Path, count: int) -> list[float]:
    sizes = []
    with log.open("a") as file:
        for begin in range(0, count, BATCH):
            file.writelines(f"07:00:00 step {begin + k} loss 4.123 300.1 tokens/s\n" for k in range(BATCH))
            file.flush()
            time.sleep(0.2)
            if begin % (5 * BATCH) == 0:
                sizes.append(terminal.memory_mb())
                terminal.forget()
    time.sleep(5.0)
    return [*sizes, terminal.memory_mb()]
