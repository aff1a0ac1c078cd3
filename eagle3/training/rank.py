"""One rank of a training, as torchrun starts it: ``python -m eagle3.training.rank RUN_DIR ATTEMPT SEQ``.

Rank 0 has the run's pen; the others have one that writes nothing but how far they are. Exit codes: 0 the training is
finished or stopped as all ranks agreed, 1 this rank failed and has said why.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from eagle3.failures import explain, read_spec
from eagle3.journal import Journal
from eagle3.runner import rundir
from eagle3.stacks import register
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.targets import model_dir
from eagle3.training.launching import end_with_parent, log_of


class Mute(Journal):
    """The pen of a rank that does not lead."""

    def progress(self, *args: Any, **kwargs: Any) -> None:
        """Rank 0 tells it."""

    def metrics(self, *args: Any, **kwargs: Any) -> None:
        """Rank 0 tells them."""

    def event(self, kind: str, text: str, *, level: str = "info", detail: str = "", **data: Any) -> None:
        """Rank 0 tells it; this rank's log gets it too."""
        self.log(text)


def main(run_dir: Path, attempt: int, seq: int) -> int:
    """Train as the rank that the environment names; its exit code."""
    rank = int(os.environ["RANK"])
    if rank:
        _write_to(log_of(run_dir, attempt, rank))
    journal = (Mute if rank else Journal)(run_dir, attempt)
    journal.seq = seq
    folder = run_dir / "ranks"
    try:
        ctx = _context(run_dir, journal)
        outcome = _train(ctx)
        if rank == 0:
            rundir.write_json(folder / "outcome.json", {"v": 1, "seq": journal.seq, "paused_s": ctx.paused_s} | outcome)
    except Exception as error:  # noqa: BLE001 - whatever it was, the worker reads it in one place
        known = isinstance(error, StageError)
        text = str(error) if known else explain(error, run_dir, "train")
        detail = error.detail if isinstance(error, StageError) else traceback.format_exc()
        journal.log(f"[error] {text}\n{detail}")
        rundir.write_json(folder / f"{rank}.failed.json", {"v": 1, "text": text, "detail": detail[-2000:]})
        return 1
    return 0


def _train(ctx: StageContext) -> dict[str, Any]:
    import torch

    from eagle3.training.group import joined
    from eagle3.training.session import Session

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ctx.spec.device == "cuda" else torch.device("cpu")
    with joined(device) as group:
        try:
            return {"state": "finished", "figures": Session(ctx, group).run()}
        except Stopped:
            return {"state": "stopped"}


def _context(run_dir: Path, journal: Journal) -> StageContext:
    spec = read_spec(run_dir / "spec.toml")
    order = run_dir / "ranks" / "stop.json"
    return StageContext(
        run_dir=run_dir,
        spec=spec,
        journal=journal,
        model_dir=model_dir(spec.target.model),
        worker_python=sys.executable,
        server_python="",
        stop_requested=lambda: rundir.read_object(order).get("attempt") == journal.attempt,
    )


def _write_to(log: Path) -> None:
    """Send this process's output, also that of its libraries, to ``log``."""
    log.parent.mkdir(exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o660)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


if __name__ == "__main__":
    end_with_parent()
    register()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
