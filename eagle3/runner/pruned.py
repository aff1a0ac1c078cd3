"""What was deleted of a run on purpose, so that a stage whose output it was is still taken for whole."""

from __future__ import annotations

from pathlib import Path

from eagle3.runner import rundir

FILE = "pruned.json"
"""In the run directory: the artefacts among a stage's outputs that were pruned, each with the time."""
UNTRAINED = "train/untrained"
STATES = "states"


def note(run_dir: Path, artefact: str, now: float) -> None:
    """Say that an artefact is about to be deleted. Raises OSError."""
    rundir.write_json(run_dir / FILE, {**rundir.read_object(run_dir / FILE), "v": 1, artefact: now})


def states_used_up(run_dir: Path) -> bool:
    """Whether the hidden states were pruned, so that they are nothing to make good while the training that read them stands."""
    return STATES in rundir.read_object(run_dir / FILE)


def forget(run_dir: Path, artefact: str) -> None:
    """The artefact is being made again. Raises OSError."""
    told = rundir.read_object(run_dir / FILE)
    if told.pop(artefact, None) is not None:
        rundir.write_json(run_dir / FILE, told)


def on_purpose(run_dir: Path, output: str) -> bool:
    """Whether a stage's output was pruned, so that its absence is nothing to make good."""
    return output.startswith(f"{UNTRAINED}/") and "untrained" in rundir.read_object(run_dir / FILE)
