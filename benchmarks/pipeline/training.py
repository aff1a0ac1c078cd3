"""The part ``training``: a step of ours against a step of speculators' own command, in interleaved blocks.

Both train at the same time on the same states, as the processes that an operator would start; only one of them runs at a
time, the other is suspended, and they take turns every few steps. So a busy moment of the machine meets both.

Measured twice: at the run's own packs, where ours leaves out the padding on a CPU and theirs computes it, and at packs so short
that every one is full, where both compute the same: what remains there is what each loop takes around the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure, Figures
from benchmarks.options import Options
from benchmarks.pipeline import peer
from benchmarks.pipeline.material import ROOT, Run, call, offline, ours, samples

BLOCK_STEPS, FULL_BLOCK_STEPS = 12, 17
"""Of each turn; the first one is not counted, since the suspension falls into it. Steps of short packs take half as long, and a
machine that is busy for a second weighs twice as much in as many of them; speculators' own training of a pilot ends after 128."""
FULL_PACK_TOKENS = 64
"""So short that nearly every sample fills one, or more than one."""
START_LIMIT_S = 300.0
STEP_LIMIT_S = 120.0


def measure(options: Options) -> Figures:
    """Step times of both, and their ratio by pairs of blocks."""
    run = ours(options)
    train = run.spec.train.model_copy(update={"pack_tokens": FULL_PACK_TOKENS})
    full = dataclasses.replace(run, spec=run.spec.model_copy(update={"train": train}))
    return _figures(run, options, "", BLOCK_STEPS) | _figures(full, options, ", packs full", FULL_BLOCK_STEPS)


def _figures(run: Run, options: Options, words: str, block_steps: int) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="eagle3-training-"))
    try:
        contestants = [_Contestant("ours", *_ours(run, folder)), _Contestant("speculators", *_theirs(run, folder))]
        try:
            blocks = _take_turns(contestants, options.rounds(6), block_steps)
        finally:
            for contestant in contestants:
                contestant.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    mine, theirs = blocks["ours"], blocks["speculators"]
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return {
        f"a step of ours against one of speculators'{words}": Figure.of(ratios, "×", "<= 1.02"),
        f"a step of ours{words}": Figure.of(mine, "s"),
        f"a step of speculators'{words}": Figure.of(theirs, "s"),
    }


class _Ends:
    """The moments at which steps ended, from a file that grows by a line each. Every look reads the new lines alone: read from
    the start a hundred times a second, our file of metrics took the processor that the training needs, more with each step."""

    def __init__(self, file: Path, moment: Callable[[str], float | None]) -> None:
        self._file, self._moment = file, moment
        self._read = 0
        self._found: list[float] = []

    def __call__(self) -> list[float]:
        """All so far."""
        if self._file.exists():
            with self._file.open("rb") as stream:
                stream.seek(self._read)
                whole, ended, _ = stream.read().rpartition(b"\n")
            self._read += len(whole) + len(ended)
            moments = map(self._moment, whole.decode().splitlines())
            self._found += [moment for moment in moments if moment is not None]
        return self._found


class _Contestant:
    """A training in a process group of its own; ``ends`` gives the moments at which its steps ended so far."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path, ends: Callable[[], list[float]]) -> None:
        self.name, self.ends, self._log = name, ends, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **offline(), **env}, cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    def wait_for(self, steps: int, limit_s: float) -> list[float]:
        """The ends, once there are so many. Raises RuntimeError where it ends before."""
        deadline = time.monotonic() + limit_s
        while len(found := self.ends()) < steps:
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = self._log.read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{self.name} is at step {len(found)} and not at {steps}; {self._log} ends:\n{log}")
            time.sleep(0.01)
        return found

    def hold(self) -> None:
        """Suspend it."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill it: what it trained is not wanted."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def _take_turns(contestants: list[_Contestant], rounds: int, block_steps: int) -> dict[str, list[float]]:
    """The median step of each block, by contestant; the first block of each warms up."""
    for contestant in contestants:
        # One starts up alone, then waits for the other.
        for other in contestants:
            if other is not contestant:
                other.hold()
        contestant.go_on()
        contestant.wait_for(2, START_LIMIT_S)
        contestant.hold()
    blocks: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds + 1):
        for contestant in contestants if number % 2 else reversed(contestants):
            before = len(contestant.ends())
            contestant.go_on()
            ends = contestant.wait_for(before + block_steps, STEP_LIMIT_S)
            contestant.hold()
            counted = ends[before : before + block_steps]
            if number:
                blocks[contestant.name].append(statistics.median(b - a for a, b in itertools.pairwise(counted)))
    return blocks


def _ours(run: Run, folder: Path) -> tuple[list[str], dict[str, str], Path, Callable[[], list[float]]]:
    """The worker on a copy of the run (by hard links) in which the training is still to be done."""
    copy = folder / "ours"
    shutil.copytree(
        run.run_dir, copy, copy_function=os.link, ignore=shutil.ignore_patterns("train", "evaluate", "export", "*.jsonl")
    )
    for file in run.run_dir.glob("*/*.jsonl"):
        os.link(file, copy / file.relative_to(run.run_dir))
    for name in ("stages/train.json", "stages/evaluate.json", "stages/export.json", "result.json", "control.json", "stop.json"):
        (copy / name).unlink(missing_ok=True)
    (copy / "spec.toml").unlink()
    (copy / "spec.toml").write_text(run.spec.to_toml())

    def moment(line: str) -> float | None:
        row = json.loads(line)
        return float(row["t"]) if row["stage"] == "train" and row.get("split") != "val" else None

    ends = _Ends(copy / "metrics.jsonl", moment)
    return [sys.executable, "-m", "eagle3", "work", str(copy)], {}, folder / "ours.log", ends


def _theirs(run: Run, folder: Path) -> tuple[list[str], dict[str, str], Path, Callable[[], list[float]]]:
    """``speculators train`` on the same states, under the names that it looks for."""
    log, data, states = folder / "speculators.log", folder / "prepared", folder / "states"
    trained_on = peer.write_rows(run, folder / "rows.jsonl")
    call(peer.prepare(run.spec, folder / "rows.jsonl", data), log)
    states.mkdir()
    number = {tuple(row["input_ids"]): row["index"] for row in samples(run)}
    from datasets import load_from_disk

    prepared = load_from_disk(str(data)).with_format(None)
    for index, row in enumerate(prepared):  # it may have been put in another order
        own = number[tuple(row["input_ids"])]
        os.link(run.run_dir / "states" / f"hs_{own}.safetensors", states / f"hs_{index}.safetensors")
    tokens = sum(len(row["input_ids"]) for row in samples(run) if row["split"] == "train")
    command = peer.train(
        run.spec, data, states, folder / "draft", trained_on / len(prepared), -(-tokens // run.spec.train.pack_tokens)
    )  # fmt: skip
    steps = folder / "steps"
    return command, {"STEPS_FILE": str(steps)}, log, _Ends(steps, float)
