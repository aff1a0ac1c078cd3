"""The estimate at work: written before a run's first stage, held against the disk, and against what the run really took."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3.core.estimate import IMPORT_S, compare, estimate, refusal
from eagle3.core.rates import break_even_name
from eagle3.core.spec import RunSpec
from eagle3.measured import rates_of, remember
from eagle3.runner import rundir

FILE = "estimate.json"

NOISY = 0.25
"""Share of the CPU taken by others above which a measured speed is not remembered."""

_FILES_OF = {
    "prepare": ("data/prompts.jsonl",),
    "regenerate": ("data",),
    "extract": ("states",),
    "vocabulary": ("vocabulary",),
    "train": ("train",),
    "evaluate": ("evaluate",),
    "export": ("export",),
}
"""What belongs to a stage; a file counts once, with the first stage that names it."""


def no_room(spec: RunSpec, place: Path) -> str:
    """Why the disk of the run directory ``place`` is too small for the rest of the run, in one sentence; empty where it is not.

    What the folder holds already counts as room: a resumed or forked run has written a part.
    """
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    need = estimate(spec).needs[0]
    held = sum(file_sizes(place, ("",), set())) if place.is_dir() else 0
    left = replace(need, path=str(there), bytes=max(0, need.bytes - held))
    disk = os.statvfs(there)
    if disk.f_files and disk.f_favail < left.inodes - held // 4096:
        return (
            f"The disk of {there} has {disk.f_favail:,} free inodes, and the run makes about {left.inodes:,} files; "
            "delete some files or choose another workspace."
        )
    return refusal(left, shutil.disk_usage(there).free, spec.disk_floor_bytes)


def write(run_dir: Path, spec: RunSpec) -> None:
    """Put the estimate down, once: what is said after the work must not change what is compared with it."""
    path = run_dir / FILE
    if not rundir.read_object(path):
        rundir.write_json(path, estimate(spec, rates_of(run_dir.parent.parent, spec)).to_json())


def outcome(run_dir: Path, records: Mapping[str, Any]) -> dict[str, Any]:
    """How far off the estimate was, for ``result.json``; empty where none was written. Stages taken over from another run are
    left out: they took no time here."""
    found = rundir.read_object(run_dir / FILE)
    seen: set[tuple[int, int]] = set()
    actual: dict[str, dict[str, float]] = {}
    for stage, patterns in _FILES_OF.items():
        size = sum(file_sizes(run_dir, patterns, seen))
        record = records.get(stage) or {}
        figures = record.get("figures") or {}
        # A training that went on from a checkpoint took only a part of its time in this attempt.
        if record and not record.get("forked_from") and figures.get("resumed_from") is None:
            actual[stage] = {"seconds": float(record["seconds"]), "bytes": float(size), **_tokens(stage, figures)}
    return compare(found, actual) if found else {}


def learn(run_dir: Path, spec: RunSpec, records: Mapping[str, Any]) -> dict[str, float]:
    """Write the rates that this run has measured to the workspace, and return them."""
    own = {stage: record for stage, record in records.items() if record and not record.get("forked_from")}
    figures = {stage: record["figures"] for stage, record in own.items()}
    found: dict[str, Any] = {
        "server_start_s": figures.get("regenerate", {}).get("server_start_s"),
        "generate_tok_s": figures.get("regenerate", {}).get("tok_s"),
        "plain_tok_s": figures.get("regenerate", {}).get("tok_s_no_draft"),
        "extract_tok_s": figures.get("extract", {}).get("tok_s"),
    }
    served = figures.get("evaluate", {}).get("served", {})
    # A speed that others have spoilt is no rate to plan with.
    if served.get("other_cpu", 0.0) < NOISY:
        found["draft_tok_s"] = served.get("tok_s")
    for point in figures.get("evaluate", {}).get("curve", []):
        if point["other_cpu"] < NOISY:
            found[break_even_name(spec, point["concurrency"])] = point["break_even_len"]
    train = own.get("train", {})
    # A resumed training's seconds are those of its last attempt alone.
    if train and train["figures"].get("resumed_from") is None and train["seconds"] > IMPORT_S:
        found["train_tok_s"] = spec.train.max_steps * spec.train.pack_tokens * spec.packs_per_step / (train["seconds"] - IMPORT_S)
    measured = {name: float(value) for name, value in found.items() if value}
    if measured:
        steps = spec.train.max_steps * spec.train.pack_tokens * spec.packs_per_step
        over = {
            "generate_tok_s": figures.get("regenerate", {}).get("answer_tokens"),
            "extract_tok_s": figures.get("extract", {}).get("tokens"),
            "plain_tok_s": served.get("tokens_no_draft"),
            "draft_tok_s": served.get("tokens"),
            "train_tok_s": steps,
        }
        tokens = {name: float(count) for name, count in over.items() if count}
        remember(run_dir.parent.parent, spec, run_dir.name, measured, tokens=tokens)
    return measured


def note_line(found: Mapping[str, Any]) -> str:
    """How far off the estimate was, as a sentence for the notes; empty where nothing can be said."""
    parts = [
        f"{stage} {row['seconds_ratio']:.2f}" for stage, row in found.get("stages", {}).items() if row.get("seconds_ratio", 0) and
        row["seconds"][1] >= 5
    ]  # fmt: skip
    if "seconds_ratio" not in found or not parts:
        return ""
    return f"Took {found['seconds_ratio']:.2f} times the estimated time (by stage: {', '.join(parts)})."


def file_sizes(folder: Path, patterns: tuple[str, ...], seen: set[tuple[int, int]]) -> list[int]:
    """Sizes of the files below the patterns, each file once however many names it has; ``seen`` is added to."""
    sizes = []
    for pattern in patterns:
        place = folder / pattern
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                about = path.stat()
                if (about.st_dev, about.st_ino) not in seen:
                    seen.add((about.st_dev, about.st_ino))
                    sizes.append(about.st_size)
    return sizes


def _tokens(stage: str, figures: Mapping[str, Any]) -> dict[str, float]:
    name = {"regenerate": "answer_tokens", "extract": "tokens"}.get(stage, "")
    return {"tokens": float(figures[name])} if figures.get(name) else {}
