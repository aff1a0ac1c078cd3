"""The estimate at work: written before a run's first stage, held against the disk, and against what the run really took."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3.core.estimate import IMPORT_S, Estimate, compare, estimate, refusal
from eagle3.core.rates import break_even_name
from eagle3.core.spec import RunSpec
from eagle3.measured import rates_of, remember
from eagle3.runner import rundir, state
from eagle3.targets import model_dir

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


def here(found: Estimate) -> Estimate:
    """The estimate with the paths of this machine, and without the needs that are met already."""
    placed = [
        replace(need, path=str(model_dir(need.path)), unless=need.unless and str(model_dir(need.unless))) for need in found.needs
    ]
    return replace(found, needs=[need for need in placed if not (need.unless and Path(need.unless).exists())])


def write(run_dir: Path, spec: RunSpec) -> None:
    """Put the estimate down, once: what is said after the work must not change what is compared with it."""
    path = run_dir / FILE
    if not rundir.read_object(path):
        rundir.write_json(path, estimate(spec, rates_of(run_dir.parent.parent, spec)).to_json())


def outcome(run_dir: Path, records: Mapping[str, Any]) -> dict[str, Any]:
    """How far off the estimate was, for ``result.json``; empty where none was written. Stages taken over from another run are
    left out: they took no time here. So are the seconds of those that an earlier attempt had begun (``left_out`` names them)."""
    found = rundir.read_object(run_dir / FILE)
    seen: set[tuple[int, int]] = set()
    actual: dict[str, dict[str, float]] = {}
    left_out = []
    for stage, patterns in _FILES_OF.items():
        size = sum(file_sizes(run_dir, patterns, seen))
        record = records.get(stage) or {}
        figures = record.get("figures") or {}
        if not record or taken_over(record):
            continue
        actual[stage] = {"bytes": float(size), **_tokens(stage, figures)}
        if went_on(stage, record):
            left_out.append(stage)
        else:
            actual[stage]["seconds"] = float(record["seconds"])
    return {**compare(found, actual), **({"left_out": left_out} if left_out else {})} if found else {}


def went_on(stage: str, record: Mapping[str, Any]) -> bool:
    """Whether a stage took only a part of its time in the attempt that finished it: a training went on from a checkpoint, another
    stage from what an earlier attempt had landed."""
    if stage == "train":
        return record["figures"].get("resumed_from") is not None
    return bool(record.get("begun_before"))


def learn(run_dir: Path, spec: RunSpec, records: Mapping[str, Any]) -> dict[str, float]:
    """Write the rates that this run has measured to the workspace, and return them."""
    found, tokens = measured(run_dir, spec, records)
    if found:
        resumed = ((records.get("train") or {}).get("figures") or {}).get("resumed_from") is not None
        alone = {"train_tok_s"} if resumed else set()
        remember(run_dir.parent.parent, spec, run_dir.name, found, tokens=tokens, of_steps=alone)
    return found


def measured(run_dir: Path, spec: RunSpec, records: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """The rates that a run has measured, by the names of ``core.rates``, and over how many tokens each."""
    own = {stage: record for stage, record in records.items() if record and not taken_over(record)}
    figures = {stage: record["figures"] for stage, record in own.items()}
    answers, states = figures.get("regenerate", {}), figures.get("extract", {})
    served = figures.get("evaluate", {}).get("served", {})
    found: dict[str, tuple[Any, Any]] = {
        "server_start_s": (answers.get("server_start_s"), None),
        "generate_tok_s": (answers.get("tok_s"), answers.get("answer_tokens")),
        "plain_tok_s": (answers.get("tok_s_no_draft"), served.get("tokens_no_draft")),
        "extract_tok_s": (states.get("tok_s"), states.get("tokens")),
        "train_tok_s": _training_rate(run_dir, spec, own.get("train") or {}),
        "draft_tok_s": (served.get("tok_s"), served.get("tokens")),
    }
    # A speed that others have spoilt is no rate to plan with. It is measured twice, before the extraction and after the training.
    early, late = (served.get(name, 0.0) >= NOISY for name in ("other_cpu_no_draft", "other_cpu"))
    spoilt = {"generate_tok_s": early, "plain_tok_s": early, "draft_tok_s": late, "extract_tok_s": early and late}
    spoilt |= {"train_tok_s": early and late, "server_start_s": early}
    for point in figures.get("evaluate", {}).get("curve", []):
        name = break_even_name(spec, point["concurrency"])
        found[name], spoilt[name] = (point["break_even_len"], None), point["other_cpu"] >= NOISY
    known = {name: (value, count) for name, (value, count) in found.items() if value and not spoilt.get(name)}
    rates = {name: float(value) for name, (value, _) in known.items()}
    return rates, {name: float(count) for name, (_, count) in known.items() if count}


def _training_rate(run_dir: Path, spec: RunSpec, record: Mapping[str, Any]) -> tuple[float | None, float]:
    """Tokens/s of packs, and over how many tokens: of the whole stage, or where it was resumed, of the steps between which no
    held-out samples were scored."""
    if not record:
        return None, 0.0
    step_tokens = spec.train.pack_tokens * spec.packs_per_step
    if record["figures"].get("resumed_from") is None:
        tokens = float(spec.train.max_steps * step_tokens)
        return (tokens / (record["seconds"] - IMPORT_S) if record["seconds"] > IMPORT_S else None), tokens
    # The stage's seconds are those of its last attempt, whose steps tell when they ended.
    seconds, steps, before = 0.0, 0, None
    for row in state.tail_rows(run_dir / "metrics.jsonl"):
        if row.get("stage") == "train" and row.get("attempt") == record["attempt"]:
            ended = float(row["t"]) if row.get("split") == "train" else None
            if ended is not None and before is not None:
                seconds, steps = seconds + ended - before, steps + 1
            before = ended
    tokens = float(steps * step_tokens)
    return (tokens / seconds if seconds > 0 else None), tokens


def taken_over(record: Mapping[str, Any]) -> bool:
    """Whether the stage was finished by another run, so that its seconds are none of this one's."""
    return bool(record.get("forked_from") or record.get("imported_from"))


def note_line(found: Mapping[str, Any]) -> str:
    """How far off the estimate was, as a sentence for the notes; empty where nothing can be said."""
    parts = [
        f"{stage} {row['seconds_ratio']:.2f}" for stage, row in found.get("stages", {}).items() if row.get("seconds_ratio", 0) and
        row["seconds"][1] >= 5
    ]  # fmt: skip
    if "seconds_ratio" not in found or not parts:
        return ""
    missing = found.get("left_out") or []
    besides = f"; without {' and '.join(missing)}, which an earlier attempt had begun" if missing else ""
    return f"Took {found['seconds_ratio']:.2f} times the estimated time (by stage: {', '.join(parts)}{besides})."


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
