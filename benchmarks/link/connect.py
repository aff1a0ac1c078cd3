"""Connect and a full probe over a line of 100 ms, against the same questions asked by ``ssh``; and what a poll costs."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.figures import Figure, Figures
from benchmarks.link.place import RUN_ID, Place
from remote.follow import Follower
from tests.support.proxy import FaultProxy

ROUND_TRIP_S = 0.1

QUESTIONS = (
    "nvidia-smi --query-gpu=index,name,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw --format=csv; true",
    "df -P -B1 ~/eagle3 /tmp /dev/shm; df -P -i ~/eagle3 /tmp /dev/shm",
    'ps -eo pid,args | grep \'[v]llm\'; for u in $(sed \'s/.*"url": "\\([^"]*\\)".*/\\1/\' ~/eagle3/runs/*/servers/*.json); do '
    "curl -s -m 2 $u/health; curl -s -m 2 $u/v1/models; curl -s -m 2 $u/metrics; done; true",
    "cd ~/eagle3/runs && for r in */; do cat $r/launch.json $r/progress.json $r/attempts/*/started.json; "
    "cat $r/attempts/*/exit.json $r/stop.json 2>/dev/null; tail -c 65536 $r/metrics.jsonl; done; true",
    "hostname; uname -rm; nproc; cat /proc/loadavg /proc/meminfo /proc/uptime /etc/os-release",
)
"""GPUs, disks, vLLM, runs, host: what one probe answers. Run in the order in which a person would ask."""


async def measure(place: Place, rounds: int) -> Figures:
    """``rounds`` times each, taking turns, so that a busy moment of the machine meets all of them."""
    async with FaultProxy(place.sshd.port, delay_s=ROUND_TRIP_S / 2) as line:
        place.trust(line.port)
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "ours": lambda: _ours(place, line.port),
            "five ssh": lambda: _ssh(place, line.port),
            "five ssh, ControlMaster": lambda: _ssh(place, line.port, shared=True),
            "command": lambda: _command(place, line.port),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                begun = time.perf_counter()
                await way()
                took[name].append(time.perf_counter() - begun)
        figures = {
            "connect and full probe at 100 ms": Figure.of(took["ours"], "s", "<= 1.3"),
            "the same by five ssh commands": Figure.of(took["five ssh"], "s"),
            "the same by five ssh commands, ControlMaster": Figure.of(took["five ssh, ControlMaster"], "s"),
            "times faster than five ssh commands": Figure.of(_ratios(took["five ssh"], took["ours"]), "×", ">= 3"),
            "times faster than with ControlMaster": Figure.of(_ratios(took["five ssh, ControlMaster"], took["ours"]), "×"),
            "eagle3-tui check, process and imports too": Figure.of(took["command"], "s"),
        }
        return {**figures, **await _poll(place, line, rounds)}


def _ratios(peer: list[float], ours: list[float]) -> list[float]:
    return [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]


async def _ours(place: Place, port: int) -> None:
    container = place.container(port, probe_first=True)
    try:
        await container.open()
        probe = await container.probe()
    finally:
        # As ssh: the goodbye is part of a command, but nobody waits a round trip for it.
        closing = asyncio.create_task(container.close())
    if len(probe.gpu.gpus) != 8 or not probe.disks or not probe.vllm or not probe.runs:
        raise RuntimeError(f"the probe is not full: {probe}")
    await closing


async def _ssh(place: Place, port: int, *, shared: bool = False) -> None:
    options = ["-F", str(place.home / ".ssh" / "config"), "-p", str(port), "-o", "BatchMode=yes"]
    options += ["-o", f"UserKnownHostsFile={place.home}/.ssh/known_hosts"]
    if shared:
        options += ["-o", "ControlMaster=auto", "-o", f"ControlPath={place.home}/mux", "-o", "ControlPersist=60"]
    where = f"{getpass.getuser()}@127.0.0.1"
    for question in QUESTIONS:
        await _run("ssh", *options, where, question)
    if shared:
        await _run("ssh", *options, "-O", "exit", where)


async def _command(place: Place, port: int) -> None:
    url = place.sshd.url.rpartition(":")[0]
    await _run(sys.executable, "-m", "tui", "check", f"{url}:{port}", "--json", home=str(place.home))


async def _run(*command: str, home: str = "") -> None:
    # Without LD_LIBRARY_PATH the driver is not found here, as on a laptop.
    environment = {**os.environ, **({"HOME": home, "XDG_STATE_HOME": home} if home else {})}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {err.decode(errors='replace')[-300:]}")
    if not out and "exit" not in command and "nvidia-smi" not in command[-1]:
        raise RuntimeError(f"{command[-1]!r} answered nothing: {err.decode(errors='replace')[-300:]}")


async def _poll(place: Place, line: FaultProxy, rounds: int) -> Figures:
    """Five files (metrics, events, log, progress, result), GPUs, disks and vLLM in one question; counted on the line."""
    turns, took = [], []
    async with place.container(line.port) as container:
        follower = Follower()
        for _ in range(rounds + 1):
            before, begun = line.turns, time.perf_counter()
            probe = progress = None
            while probe is None:  # on a busy machine the GPUs may be late, and then it is more than one
                arguments = {"workspace": container.workspace, "run_id": RUN_ID, **follower.request({})}
                reply = await container.ask("poll", arguments)
                news = follower.apply(reply.result, reply.now)
                probe, progress = news.probe, news.progress
            took.append(time.perf_counter() - begun)
            turns.append(line.turns - before)
            if len(probe.gpu.gpus) != 8 or not probe.disks or not probe.vllm or progress is None:
                raise RuntimeError("the poll is not full")
            await asyncio.sleep(0.3)
    return {
        "round trips of a full poll": Figure.of([float(turn) for turn in turns[1:]], "round trips", "<= 1"),
        "a full poll at 100 ms": Figure.of(took[1:], "s"),
    }
