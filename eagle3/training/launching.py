"""Starts the ranks of a training through torchrun, passes a stop on to them, and gives what they found. Imports no torch.

The worker stays their ancestor: worker → torchrun → ranks, and each of them asks the kernel to be killed when its parent
dies, so a kill at any place leaves nothing that trains on. What they say goes three ways: rank 0 has the run's own pen
(rows, events, checkpoints) and the attempt's log; the others write to ``logs/train-rank-<r>.log``; and in ``ranks/`` lie
``stop.json`` (the worker's word to rank 0), ``outcome.json`` (rank 0's last one) and ``<r>.failed.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import eagle3
from eagle3.core.serving import device_environment
from eagle3.runner import redact, rundir
from eagle3.stages.context import StageContext, StageError, Stopped

POLL_S = 0.2
END_S = 40.0
"""How long torchrun may take to end: it gives its ranks 30 s itself."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def train(ctx: StageContext, ranks: int) -> dict[str, Any]:
    """Train on ``ranks`` ranks; the stage's figures. Raises Stopped, and StageError naming the rank that failed, why, and its
    log."""
    folder = ctx.path("ranks", "outcome.json").parent
    for left in folder.glob("*.json"):
        left.unlink()
    (ctx.run_dir / "logs").mkdir(exist_ok=True)
    on = f"on {ranks} ranks ({ctx.spec.train.parallel})" if ranks > 1 else "in a process of its own"
    ctx.journal.event("train-ranks", f"Training starts {on}.", ranks=ranks)
    child = subprocess.Popen(_command(ctx, ranks), env=_environment(ctx, ranks), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        told = False
        while child.poll() is None:
            if not told and ctx.stop_requested():
                rundir.write_json(folder / "stop.json", {"v": 1, "attempt": ctx.journal.attempt})
                told = True
            time.sleep(POLL_S)
    finally:
        _end(child)
    outcome = rundir.read_object(folder / "outcome.json")
    ctx.journal.seq = max(ctx.journal.seq, int(outcome.get("seq", 0)))
    ctx.paused_s += float(outcome.get("paused_s", 0.0))
    if child.returncode == 0 and outcome.get("state") == "stopped":
        raise Stopped
    if child.returncode == 0 and outcome.get("state") == "finished":
        figures: dict[str, Any] = outcome["figures"]
        return figures
    raise _failure(ctx, ranks, child.returncode)


def log_of(run_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank's output goes."""
    return run_dir / "attempts" / str(attempt) / "run.log" if rank == 0 else run_dir / "logs" / f"train-rank-{rank}.log"


def end_with_parent() -> None:
    """Have this process killed when the one that started it dies."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent != os.getppid():  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _command(ctx: StageContext, ranks: int) -> list[str]:
    journal = ctx.journal
    return [
        sys.executable, "-m", "eagle3.training.torchrun", str(ctx.run_dir / "ranks" / "torchrun.json"),
        "--standalone", "--nnodes=1", f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1", "--max-restarts=0",
        "--module", "eagle3.training.rank", str(ctx.run_dir), str(journal.attempt), str(journal.seq),
    ]  # fmt: skip


def _environment(ctx: StageContext, ranks: int) -> dict[str, str]:
    """The worker's, with the training's GPUs, a fair share of the cores, and this very package."""
    home = str(Path(eagle3.__file__).resolve().parents[1])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        # All ranks are on this machine, whose own name may not be one that the network knows.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks))),
    }
    return {**redact.without_secrets(os.environ), **own, **device_environment(ctx.spec, "train")}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no torchrun and so, by `end_with_parent`, no rank."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
    if child.poll() is None:
        child.kill()
    child.wait()


def _failure(ctx: StageContext, ranks: int, code: int) -> StageError:
    """What to tell of ranks that ended without an outcome: the first that failed, by torchrun's word."""
    first = rundir.read_object(ctx.run_dir / "ranks" / "torchrun.json")
    if "rank" not in first:
        return StageError(
            f"torchrun ended ({_ended(code)}) before the {ranks} ranks of the training had; the attempt's log says why. "
            "Resume the run to go on from the last checkpoint."
        )
    rank = int(first["rank"])
    said = rundir.read_object(ctx.run_dir / "ranks" / f"{rank}.failed.json")
    why = str(said.get("text") or f"it {_ended(int(first.get('code', 1)))}")
    log = log_of(ctx.run_dir, ctx.journal.attempt, rank).relative_to(ctx.run_dir)
    return StageError(
        f"Rank {rank} of {ranks} of the training failed: {why.rstrip('.')}. Its log is {log}; once the cause is mended, "
        "resume goes on from the last checkpoint.",
        detail=str(said.get("detail") or ""),
    )


def _ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
