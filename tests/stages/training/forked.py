"""Ranks of a training as forks of the test's own process: real processes and real gloo, without loading torch once for each."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

from eagle3.engines.ports import claim_port
from eagle3.runner import rundir
from eagle3.stages.context import StageContext

LIMIT_S = 100


def train_on(ctx: StageContext, ranks: int, *, stop_when_held: bool = False) -> dict[str, Any]:
    """Train as ``ranks`` ranks; rank 0's outcome. Fails where a rank does, with its own words. ``stop_when_held``: once rank 0
    says that the training is paused, it is told to stop, as the worker would tell it."""
    codes, said = ended_on(ctx, ranks, stop_when_held=stop_when_held)
    assert codes == [0] * ranks, (codes, said)
    return rundir.read_object(ctx.run_dir / "ranks" / "outcome.json")


def ended_on(ctx: StageContext, ranks: int, *, stop_when_held: bool = False) -> tuple[list[int | None], dict[int, str]]:
    """As ``train_on``, for ranks that may fail: their exit codes, and what those that failed have said."""
    (ctx.run_dir / "spec.toml").write_text(ctx.spec.to_toml())
    folder = ctx.run_dir / "ranks"
    folder.mkdir(exist_ok=True)
    for left in folder.glob("*.json"):
        left.unlink()
    port, claim = claim_port(0)
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=_rank, args=(rank, ranks, port, ctx.run_dir, ctx.journal.attempt), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    if stop_when_held:
        threading.Thread(target=_stop_when_held, args=(ctx,), daemon=True).start()
    for process in processes:
        process.join(LIMIT_S)
    claim.close()
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes, {int(path.name.split(".")[0]): rundir.read_object(path)["text"] for path in folder.glob("*.failed.json")}


def _stop_when_held(ctx: StageContext) -> None:
    events, deadline = ctx.run_dir / "events.jsonl", time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        told = events.read_text().splitlines() if events.exists() else []
        if any(json.loads(line)["kind"] == "paused" for line in told):
            rundir.write_json(ctx.run_dir / "ranks" / "stop.json", {"v": 1, "attempt": ctx.journal.attempt})
            return
        time.sleep(0.02)


def _rank(rank: int, ranks: int, port: int, run_dir: Path, attempt: int) -> None:
    from eagle3.training import rank as module

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    os._exit(module.main(run_dir, attempt, 0))
