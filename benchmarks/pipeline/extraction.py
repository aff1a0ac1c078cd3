"""The part ``extraction``: hidden states through our client and through speculators' own, on one server, by turns.

Both ask the same server for the same samples with as many requests in flight, and both check what they get. Counted is the
time from the first request to the last file, as speculators' command tells it; what the processes take to start is apart.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Figures
from benchmarks.options import Options
from benchmarks.pipeline import peer
from benchmarks.pipeline.material import Run, call, ours, samples
from benchmarks.pipeline.server import Server, extraction
from eagle3.journal import Journal
from eagle3.runner.handed import Handed
from eagle3.stages import extract
from eagle3.stages.context import StageContext
from eagle3.stages.landing import ExtractionServer, Landing
from eagle3.states.quarantine import Quarantine
from eagle3.targets import model_dir

_ELAPSED = re.compile(r"Timing: ([\d.]+)s elapsed")


def measure(options: Options) -> Figures:
    """Throughput of both, and its ratio by rounds."""
    run = ours(options)
    folder = Path(tempfile.mkdtemp(prefix="eagle3-extraction-"))
    mine: list[float] = []
    theirs: list[float] = []
    walls: list[float] = []
    try:
        peer.write_rows(run, folder / "rows.jsonl")
        call(peer.prepare(run.spec, folder / "rows.jsonl", folder / "prepared"), folder / "speculators.log")
        tokens = sum(len(row["input_ids"]) for row in samples(run))
        with extraction(run.spec, folder) as server:
            for number in range(options.rounds(3) + 1):
                ways = [lambda n=number: mine.append(tokens / _ours(run, server, folder / f"ours-{n}"))]
                ways.append(lambda n=number: _note(theirs, walls, tokens, run, server, folder, n))
                for way in ways if number % 2 else reversed(ways):
                    way()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # The first round warms the server up.
    mine, theirs, walls = mine[1:], theirs[1:], walls[1:]
    return {
        "extraction of ours against speculators'": Figure.of(
            [one / other for one, other in zip(mine, theirs, strict=True)], "×", ">= 1.0"
        ),
        "extraction of ours": Figure.of(mine, "tokens/s"),
        "extraction of speculators'": Figure.of(theirs, "tokens/s"),
        "speculators' command in all": Figure.of(walls, "s"),
    }


def _note(theirs: list[float], walls: list[float], tokens: int, run: Run, server: Server, folder: Path, number: int) -> None:
    log = folder / f"theirs-{number}.log"
    command = peer.extract(run.spec, server.url, folder / "prepared", folder / f"theirs-{number}")
    walls.append(call(command, log))
    found = _ELAPSED.search(log.read_text())
    made = len(list((folder / f"theirs-{number}").glob("hs_*.safetensors")))
    if found is None or made != len(samples(run)):
        raise RuntimeError(f"speculators made {made} of {len(samples(run))} states; {log} ends:\n{log.read_text()[-1500:]}")
    theirs.append(tokens / float(found[1]))


def _ours(run: Run, server: Server, run_dir: Path) -> float:
    """The client of our stage, into a run directory of its own; its seconds."""
    run_dir.mkdir()
    ctx = StageContext(
        run_dir=run_dir, spec=run.spec, journal=Journal(run_dir, 1), model_dir=model_dir(run.spec.target.model),
        worker_python="", server_python="", stop_requested=lambda: False,
    )  # fmt: skip
    store = extract.open_store(ctx)
    adapter: ExtractionServer = _Adapter(server)
    rows = samples(run)
    done: dict[int, Any] = {}
    began = time.perf_counter()
    asyncio.run(Landing(ctx, adapter, store, done, Quarantine(store.folder)).all(rows))
    took = time.perf_counter() - began
    if len(done) != len(rows):
        raise RuntimeError(f"ours made {len(done)} of {len(rows)} states")
    return took


class _Adapter:
    """The server as our stage sees its own."""

    def __init__(self, server: Server) -> None:
        self.base_url, self.model, self.log_path = server.url, server.model, server.log_path
        self.handed: Handed | None = Handed(server.raw, "The server of this benchmark")
        self._server = server

    def check_alive(self) -> None:
        self._server.check_alive()

    def limit(self) -> None:
        """Nobody else uses it."""
