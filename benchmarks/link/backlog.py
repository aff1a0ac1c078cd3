"""A run of 10^6 rows is opened: how long until there is a picture, how long until there is everything."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from benchmarks.figures import Figure, Figures
from benchmarks.link.place import Place
from remote.container import RunNews
from tests.support.proxy import FaultProxy

RUN_ID = "long"
VAL_EVERY = 500
MB = 1e6


async def measure(place: Place, rows: int, rounds: int) -> Figures:
    """``rounds`` times the first picture, once everything."""
    path = place.run_dir.parent / RUN_ID / "metrics.jsonl"
    path.parent.mkdir()
    (path.parent / "launch.json").write_text("{}")
    write(path, rows)
    size = path.stat().st_size
    pictures, sizes = [], []
    async with FaultProxy(place.sshd.port) as line, place.container(line.port) as container:
        for _ in range(rounds):
            before, begun = line.passed["to_client"], time.perf_counter()
            news: RunNews = await anext(container.follow(RUN_ID))
            pictures.append(time.perf_counter() - begun)
            sizes.append((line.passed["to_client"] - before) / MB)
            if rows > 100_000 and (news.thinned is None or news.thinned.rows != rows):
                raise RuntimeError(f"the backlog did not come thinned: {news.thinned}")
        before, begun, total = line.passed["to_client"], time.perf_counter(), 0
        async for piece in container.complete(RUN_ID):
            total += len(piece.rows)
        took = time.perf_counter() - begun
        if total != rows:
            raise RuntimeError(f"{total} of {rows} rows came")
        complete = (line.passed["to_client"] - before) / MB
    path.unlink()
    (path.parent / "launch.json").unlink()
    return {
        f"first picture of {rows:,} rows ({size / MB:.0f} MB)": Figure.of(pictures, "s"),
        "its bytes": Figure.of(sizes, "MB"),
        "all of those rows": Figure(took, "s"),
        "their bytes": Figure(complete, "MB"),
    }


def write(path: Path, rows: int) -> None:
    """``rows`` rows as a training leaves them."""
    draw = random.Random(1)
    with path.open("w") as file:
        for step in range(1, rows + 1):
            acc = [draw.random() * scale for scale in (0.3, 0.1, 0.03)]
            row = {
                "v": 1, "attempt": 1, "seq": step, "t": 1.7e9 + step * 1.01, "stage": "train",
                "split": "val" if step % VAL_EVERY == 0 else "train", "step": step, "loss": 4 + draw.random(),
                "loss_pos": [4 + draw.random() for _ in acc], "acc_pos": acc, "accept_len": 1 + sum(acc),
                "lr": 1e-3 * draw.random(), "grad_norm": draw.random(), "tok_s": 300 + draw.random(),
            }  # fmt: skip
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
