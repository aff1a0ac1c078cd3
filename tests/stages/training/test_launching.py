"""The real torchrun with real ranks: one that dies ends the attempt in words, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError
from tests.runner.support import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

HELD = {"flat_loss": "pause", "flat_loss_steps": 4, "flat_loss_share": 1.0}
WAIT_S = 180


def spoken(ctx: StageContext) -> StageContext:
    """With the spec in its file, where the ranks read it."""
    (ctx.run_dir / "spec.toml").write_text(ctx.spec.to_toml())
    return ctx


def processes_of(run_dir: Path) -> dict[str, int]:
    """The live processes of a run's training: "torchrun" or the rank's number, and the pid."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            named = dict(entry.partition(b"=")[::2] for entry in (folder / "environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended
            continue
        if any(part.startswith(str(run_dir).encode()) for part in command):
            of_torchrun = b"eagle3.training.torchrun" in command
            found["torchrun" if of_torchrun else named.get(b"RANK", b"?").decode()] = int(folder.name)
    return found


def held(ctx: StageContext) -> bool:
    events = ctx.run_dir / "events.jsonl"
    return events.exists() and '"kind":"paused"' in events.read_text()


def test_a_rank_that_is_killed_ends_the_attempt_in_words_and_the_resume_finishes(toy_run: Callable[..., StageContext]) -> None:
    how = {"ranks": 2, "max_steps": 6, "pack_tokens": 32}
    ctx = spoken(toy_run(guards=HELD, **how))

    def kill_one() -> None:
        wait_for(lambda: held(ctx), deadline_s=WAIT_S)
        os.kill(processes_of(ctx.run_dir)["1"], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(StageError) as caught:
        train.run(ctx)
    killer.join(WAIT_S)
    assert str(caught.value) == (
        "Rank 1 of 2 of the training failed: it was killed by SIGKILL. Its log is logs/train-rank-1.log; once the "
        "cause is mended, resume goes on from the last checkpoint."
    )
    wait_for(lambda: not processes_of(ctx.run_dir), deadline_s=WAIT_S)
    (ctx.run_dir / "control.json").unlink()
    figures = train.run(spoken(toy_run(**how)))
    assert (figures["resumed_from"], figures["steps"]) == (4, 6)
    assert (ctx.run_dir / "train" / "draft" / "model.safetensors").is_file()


def test_a_worker_that_is_killed_takes_torchrun_and_every_rank_with_it(toy_run: Callable[..., StageContext]) -> None:
    ctx = spoken(toy_run(guards=HELD, ranks=2, max_steps=6, pack_tokens=32))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(ctx.run_dir)], cwd=Path(__file__).parents[3], stdin=subprocess.DEVNULL
    )  # fmt: skip
    try:
        wait_for(lambda: held(ctx) and processes_of(ctx.run_dir).keys() >= {"torchrun", "0", "1"}, deadline_s=WAIT_S)
    finally:
        worker.kill()
        worker.wait()
    wait_for(lambda: not processes_of(ctx.run_dir), deadline_s=WAIT_S)


def test_a_torchrun_that_is_killed_takes_its_ranks_with_it_and_the_resume_finishes(toy_run: Callable[..., StageContext]) -> None:
    how = {"ranks": 2, "max_steps": 6, "pack_tokens": 32}
    ctx = spoken(toy_run(guards=HELD, **how))

    def kill_it() -> None:
        wait_for(lambda: held(ctx), deadline_s=WAIT_S)
        os.kill(processes_of(ctx.run_dir)["torchrun"], signal.SIGKILL)

    killer = threading.Thread(target=kill_it)
    killer.start()
    with pytest.raises(StageError, match=r"^torchrun ended \(was killed by SIGKILL\) before the 2 ranks of the training had; "):
        train.run(ctx)
    killer.join(WAIT_S)
    wait_for(lambda: not processes_of(ctx.run_dir), deadline_s=WAIT_S)
    (ctx.run_dir / "control.json").unlink()
    assert train.run(spoken(toy_run(**how)))["resumed_from"] == 4


def test_a_rank_that_cannot_read_a_sample_says_which_and_the_others_end(toy_run: Callable[..., StageContext]) -> None:
    ctx = spoken(toy_run(ranks=2, max_steps=6, pack_tokens=32))
    for file in (ctx.run_dir / "states").glob("hs_*.safetensors"):
        if int(file.stem[3:]) % 4:  # those of the training
            file.write_bytes(b"torn")
    with pytest.raises(StageError, match=r"Rank \d of 2 of the training failed: .*hs_\d+.safetensors cannot be trained on"):
        train.run(ctx)
    wait_for(lambda: not processes_of(ctx.run_dir), deadline_s=WAIT_S)


def test_a_stop_of_the_worker_reaches_all_ranks_which_save_and_end(toy_run: Callable[..., StageContext]) -> None:
    from eagle3.stages.context import Stopped

    ctx = spoken(toy_run(stop_after=2, ranks=2, max_steps=100_000, pack_tokens=32, checkpoint_every_steps=100_000))
    with pytest.raises(Stopped):
        train.run(ctx)
    (checkpoint,) = (ctx.run_dir / "train" / "checkpoints").iterdir()
    assert f"Training stopped after {checkpoint.name.replace('-', ' ')} of 100000" in (ctx.run_dir / "events.jsonl").read_text()
    wait_for(lambda: not processes_of(ctx.run_dir), deadline_s=WAIT_S)


WORKER = """
import sys
from pathlib import Path
from eagle3.core.spec import RunSpec
from eagle3.journal import Journal
from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.targets import model_dir

run_dir = Path(sys.argv[1])
spec = RunSpec.from_toml((run_dir / "spec.toml").read_text())
train.run(StageContext(run_dir, spec, Journal(run_dir, 1), model_dir(spec.target.model), "", "", lambda: False))
"""
