"""W&B LEET, vllmstat and nvitop on the same terminal, as their own documents start them, in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.console.terminal import Terminal
from benchmarks.figures import Figure, Figures
from benchmarks.link.place import Place
from benchmarks.options import Options

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "peers.txt"
WRITER = Path(__file__).with_name("wandb_writer.py")
WINDOW_S = 30.0


@dataclass(frozen=True)
class Peer:
    """``command`` is what runs on the terminal; ``there`` is drawn with its first picture, ``help`` by the key ``help_key``."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    there: bytes
    help_key: bytes
    help: bytes
    back: bytes
    beside: Callable[[], AbstractContextManager[object]] = nullcontext


def installed(folder: Path) -> Path:
    """The peers' environment, built where it is not there yet. Raises CalledProcessError."""
    python = folder / "bin" / "python"
    stamp = folder / "pins"
    if not stamp.exists() or stamp.read_text() != PINS.read_text():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(PINS)], check=True)
        stamp.write_text(PINS.read_text())
    return folder / "bin"


def peers(place: Place, tools: Path) -> list[Peer]:
    """What each looks at. vllmstat has no help of its own and is asked for its palette (Ctrl+p).

    LEET looks at a run that a W&B client writes at 1 Hz, offline; vllmstat at the endpoint that our console looks at, once a
    second (its default); nvitop at the same eight stand-in cards, with its default interval, in full."""
    driver = {"LD_LIBRARY_PATH": str(place.driver)}
    home = place.home / "wandb"
    home.mkdir(exist_ok=True)
    plain = {**os.environ, "HOME": str(place.home), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return [
        Peer(
            "W&B LEET", (str(tools / "wandb"), "leet", "run"),
            {**plain, "WANDB_DIR": str(home), "WANDB_ERROR_REPORTING": "false"}, b"loss", b"h", b"elp", b"h",
            lambda: Writer(tools, home),
        ),
        Peer(
            "vllmstat", (str(tools / "vllmstat"), "--url", place.vllm_url), {**plain, **driver}, b"vllm", b"\x10", b"Search",
            b"\x1b",
        ),
        Peer("nvitop", (str(tools / "nvitop"), "--monitor", "full"), {**plain, **driver}, b"NVITOP", b"h", b"elp", b"q"),
    ]  # fmt: skip


class Writer:
    """A W&B client that logs eight figures a second, offline."""

    def __init__(self, tools: Path, home: Path) -> None:
        self._command = [str(tools / "python"), str(WRITER)]
        self._environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(home), "HOME": str(home)}

    def __enter__(self) -> Writer:
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # the run is there
        time.sleep(5.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def measure(place: Place, options: Options) -> Figures:
    """The same figures as ours; a peer that cannot run here is told by a figure of its name without a value but 0."""
    tools = installed(Path.home() / ".cache" / "eagle3" / "peers")
    figures: Figures = {}
    for peer in peers(place, tools):
        try:
            figures |= _one(peer, options)
        except (RuntimeError, OSError) as error:
            sys.stderr.write(f"{peer.name} could not be measured: {str(error)[:400]}\n")
            figures[f"{peer.name}: ran here"] = Figure(0.0, "share")
    return figures


def _one(peer: Peer, options: Options) -> Figures:
    with ExitStack() as stack:
        stack.enter_context(peer.beside())
        paints = []
        for _ in range(options.rounds(3)):
            with Terminal(peer.command, peer.environment) as terminal:
                paints.append(terminal.until(peer.there, limit_s=30.0) - terminal.begun)
        terminal = stack.enter_context(Terminal(peer.command, peer.environment))
        terminal.until(peer.there, limit_s=30.0)
        time.sleep(5.0)
        share, drawn = terminal.watched(5.0 if options.quick else WINDOW_S)
        memory, waits = terminal.memory_mb(), []
        for _ in range(options.rounds(15)):
            waits.append(terminal.pressed(peer.help_key, peer.help, limit_s=5.0) * 1000)
            time.sleep(0.5)
            terminal.send(peer.back)
            time.sleep(0.7)
    waits.sort()
    p95 = waits[min(len(waits) - 1, int(len(waits) * 0.95))]
    return {
        f"{peer.name}: first paint": Figure.of(paints, "s"),
        f"{peer.name}: processor": Figure(share * 100, "% of a core"),
        f"{peer.name}: to the terminal": Figure(drawn, "KB/s"),
        f"{peer.name}: key to paint, 95th percentile": Figure(p95, "ms", None, len(waits), (waits[0], waits[-1])),
        f"{peer.name}: resident memory": Figure(memory, "MB"),
    }
