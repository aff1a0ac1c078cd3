"""The console beside two runs that write a row, a log line and their progress each second, over a real sshd."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from benchmarks.console.terminal import Terminal
from benchmarks.figures import Figure, Figures
from benchmarks.link.place import RUN_ID, Place
from benchmarks.options import Options

OBSERVED = Path(__file__).with_name("observed.py")
SETTLE_S = 6.0
"""After a screen has come: imports, the backlog and the first probes are no part of watching."""
PAUSE_S = 0.3
"""Between two keys, as a quick hand has it."""
KEYS = (
    (b"4", b"Stages"),
    (b"1", b"vLLM"),
    (b"5", b"live first"),
    (b"?", b"Help"),
    (b"\x1b", b"Runs"),
    (b"6", b"step "),
    (b"1", b"vLLM"),
)
"""Keys and a word that is on the screen only after them."""


def environment(place: Place) -> dict[str, str]:
    """Of an operator whose home is the place's."""
    home = str(place.home)
    return {
        **os.environ,
        "HOME": home,
        "XDG_STATE_HOME": f"{home}/state",
        "XDG_CONFIG_HOME": f"{home}/config",
        "TERM": "xterm-256color",
    }


def command(place: Place, *words: str) -> list[str]:
    """The console on the place's host."""
    return [sys.executable, "-m", "tui", *(["open"] if words else []), place.sshd.url, *words]


async def measure(place: Place, options: Options) -> Figures:
    """Everything that needs the runs to be there; then what it costs when they are gone."""
    place.trust(place.sshd.port)
    figures = await asyncio.to_thread(_beside_runs, place, options)
    for run_id in (RUN_ID, "second"):
        await place.stop(run_id)
    return figures | await asyncio.to_thread(_idle, place, options)


def _beside_runs(place: Place, options: Options) -> Figures:
    duration_s = 5.0 if options.quick else 60.0
    figures: Figures = {}
    paints, early = [], 0
    for _ in range(options.rounds(7)):
        with Terminal(command(place), environment(place)) as terminal:
            paints.append(terminal.until(b"Overview") - terminal.begun)
            early += not terminal.drawn(b"up since")
    figures["first paint"] = Figure.of(paints, "s", "<= 0.8")
    figures["first paints that came before the connection"] = Figure(early / len(paints), "share", ">= 1", len(paints))
    with Terminal(command(place, "--run", RUN_ID), environment(place)) as terminal:
        terminal.until(b"Stages")
        terminal.until(b"step ")
        time.sleep(SETTLE_S)
        share, drawn = terminal.watched(duration_s)
        figures["live plots: processor"] = Figure(share * 100, "% of a core", "<= 5")
        figures["live plots: to the terminal"] = Figure(drawn, "KB/s", "<= 10")
        terminal.pressed(b"1", b"vLLM")
        share, drawn = terminal.watched(duration_s)
        figures["Overview, two live runs: processor"] = Figure(share * 100, "% of a core", "<= 5")
        figures["Overview, two live runs: to the terminal"] = Figure(drawn, "KB/s", "<= 10")
        figures["resident memory, two live runs"] = Figure(terminal.memory_mb(), "MB", "<= 150")
        waits = []
        for _ in range(options.rounds(15)):
            for key, word in KEYS:
                waits.append(terminal.pressed(key, word))
                time.sleep(PAUSE_S)
        waits.sort()
        p95 = waits[min(len(waits) - 1, int(len(waits) * 0.95))]
        figures["key to paint, 95th percentile"] = Figure(
            p95 * 1000, "ms", "<= 100", len(waits), (waits[0] * 1e3, waits[-1] * 1e3)
        )
        figures["key to paint, median"] = Figure(statistics.median(waits) * 1000, "ms", None, len(waits))
    return figures | _gaps(place, duration_s)


def _gaps(place: Place, duration_s: float) -> Figures:
    file = place.home / "gaps"
    words = [sys.executable, str(OBSERVED), str(file), "open", place.sshd.url, "--run", RUN_ID]
    with Terminal(words, {**environment(place), "PYTHONPATH": str(Path.cwd())}) as terminal:
        terminal.until(b"step ")
        time.sleep(SETTLE_S)
        begun = time.time()
        for _ in range(max(1, round(duration_s / 10))):
            terminal.watched(5.0)
            terminal.pressed(b"1", b"vLLM")
            time.sleep(1.0)
            terminal.pressed(b"4", b"Stages")
    gaps = [line.split() for line in file.read_text().splitlines()]
    worst = sorted(float(gap) * 1000 for when, gap in gaps if float(when) >= begun)
    return {
        "longest gap of the event loop": Figure(worst[-1] if worst else 0.0, "ms", "<= 50", len(worst) or 1),
        "gaps over 50 ms": Figure(sum(gap > 50 for gap in worst), "times"),
    }


def _idle(place: Place, options: Options) -> Figures:
    with Terminal(command(place), environment(place)) as terminal:
        terminal.until(b"up since")
        time.sleep(SETTLE_S)
        share, drawn = terminal.watched(5.0 if options.quick else 60.0)
    return {
        "no run lives, GPUs change: processor": Figure(share * 100, "% of a core", "<= 1"),
        "no run lives, GPUs change: to the terminal": Figure(drawn, "KB/s", "<= 10"),
    }
