"""What terminals do to programs: they are not read, they are closed, they change their size, they are suspended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time

from benchmarks.console.ours import command, environment
from benchmarks.console.terminal import Terminal
from benchmarks.figures import Figure, Figures
from benchmarks.link.place import RUN_ID, Place
from benchmarks.options import Options

RESIZES = 200
END_LIMIT_S = 30.0


async def measure(place: Place, options: Options) -> Figures:
    """Each as the share of tries that the console survived, in good order."""
    return await asyncio.to_thread(_measure, place, options)


def _measure(place: Place, options: Options) -> Figures:
    def survived(ok: bool) -> Figure:
        return Figure(float(ok), "share", ">= 1")

    figures: Figures = {}
    with Terminal(command(place, "--run", RUN_ID), environment(place)) as terminal:
        terminal.until(b"step ")
        terminal.hold(True)
        time.sleep(3.0 if options.quick else 30.0)
        terminal.hold(False)
        figures["survived: a terminal not read for 30 s"] = survived(_answers(terminal))
        for k in range(RESIZES):
            terminal.resize(40 + k % 100, 12 + k % 40)
            time.sleep(0.01)
        terminal.resize(120, 40)
        figures[f"survived: {RESIZES} resizes in 2 s"] = survived(_answers(terminal))
        cpu = terminal.cpu_s()
        terminal.send(b"\x1a")
        time.sleep(2.0)
        stopped = terminal.stopped()
        terminal.signal(signal.SIGCONT)
        figures["survived: a suspend by ctrl-z"] = survived(stopped and _answers(terminal))
        figures["processor while suspended"] = Figure(terminal.cpu_s() - cpu, "s")
    with Terminal(command(place, "--run", RUN_ID), environment(place)) as terminal:
        terminal.until(b"step ")
        terminal.close()
        begun = time.perf_counter()
        try:
            terminal.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            figures["ends with its terminal"] = Figure(END_LIMIT_S, "s", "<= 10")
        else:
            figures["ends with its terminal"] = Figure(time.perf_counter() - begun, "s", "<= 10")
    return figures


def _answers(terminal: Terminal) -> bool:
    """Whether keys still bring their screens."""
    try:
        terminal.pressed(b"1", b"vLLM")
        terminal.pressed(b"4", b"Stages")
    except RuntimeError:
        return False
    return True
