"""Putting what was made elsewhere into a run directory that is being made: data, states, and the records of their stages, so that
the worker finds these stages whole. Everything is checked as if it had landed from a server; nothing is believed.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3 import work
from eagle3.core import guards
from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import check_model_dir, check_shape
from eagle3.importing import evaluation_prompts, judging, room, speculators_folder
from eagle3.importing.evaluation_prompts import Asked
from eagle3.journal import Journal
from eagle3.rows import Row, read_rows, write_rows
from eagle3.runner import rundir
from eagle3.runner.errors import VerbError
from eagle3.stages import extract, prepare, regenerate
from eagle3.stages.context import StageContext
from eagle3.stages.samples import Template
from eagle3.stages.vocabulary import target_vocabulary
from eagle3.states.checking import Misfit, MixedUp, StateError
from eagle3.states.quarantine import Quarantine
from eagle3.store import StateRow, StateStore
from eagle3.targets import model_dir

FILE = "import.json"


def context(folder: Path, spec: RunSpec) -> StageContext:
    """What the stages are given here. Raises VerbError (usage) where the target is not on this machine."""
    target = model_dir(spec.target.model)
    if not target.is_dir():
        raise VerbError(
            "usage", f"The target {spec.target.name} is not on this machine ({target}), and states are checked against it.",
            f"Bring it first: `eagle3 prefetch --target {spec.target.name}`.",
        )  # fmt: skip
    return StageContext(folder, spec, Journal(folder, 0, actor="import"), target, "", "", lambda: False)


def record(
    ctx: StageContext, stage: str, figures: dict[str, Any], source: str, seconds: float = 0.0, *, remade: bool = True
) -> None:
    """The record of a stage whose files are there, as the worker would have written it. ``remade``: whether the run itself can
    make them again; else a resume refuses to (``work.run_stage``)."""
    module = importlib.import_module(f"eagle3.stages.{stage}")
    rundir.write_json(
        ctx.path("stages", f"{stage}.json"),
        {
            "v": 1, "stage": stage, "attempt": 0, "inputs": work.inputs_hash(ctx, stage, module), "spec_hash": ctx.spec.hash,
            "outputs": work.outputs(ctx.run_dir, module.OUTPUTS), "figures": figures, "seconds": round(seconds, 2),
            "imported_from": source, "t": time.time(), **({} if remade else {"remade": False}),
        },
    )  # fmt: skip


def from_speculators(ctx: StageContext, folder: Path, states: Path) -> dict[str, Any]:
    """Fill the run with a dataset of speculators and its states. Answers the counts; raises VerbError."""
    rows = speculators_folder.read(folder)
    files = speculators_folder.state_files(states)
    if not files:
        raise VerbError("usage", f"There is no hs_<number>.safetensors in {states}.", "Name the folder of the states: --states.")
    if beyond := sorted(index for index in files if index >= len(rows)):
        raise VerbError(
            "usage",
            f"{files[beyond[0]]} belongs to row {beyond[0]}, and the dataset in {folder} has {len(rows)} rows.",
            "Give the states that were made from this dataset.",
        )
    vocabulary = target_vocabulary(ctx.model_dir)
    largest = max(max(row["input_ids"]) for row in rows)
    if largest >= vocabulary:
        raise VerbError(
            "usage",
            f"The dataset in {folder} holds token {largest}, and {ctx.spec.target.name} has {vocabulary} tokens.",
            "It was made with another tokenizer: name the target that it was made for.",
        )
    check_shape(check_model_dir(ctx.model_dir), ctx.spec.target, ctx.model_dir)
    store = extract.open_store(ctx)
    sizes = ((file, len(rows[index]["input_ids"])) for index, file in files.items())
    room.check(ctx, store, sizes, converts=ctx.spec.extract.storage not in ("target", ctx.spec.target.dtype))
    different, repeated = speculators_folder.different(rows)
    sound = judging.judge(ctx, list(different.values()))
    prompts, duplicates = prepare.read_prompts(ctx)
    heldout = evaluation_prompts.choose(ctx, prompts)
    asked = Asked(heldout, Template(ctx.model_dir, trust_remote_code=ctx.spec.target.trust_remote_code))
    samples, evaluated = speculators_folder.split(sound, ctx.spec.data.heldout_prompts, asked.by)
    record(ctx, "prepare", prepare.write(ctx, [], heldout) | {"duplicates": duplicates}, str(folder), remade=False)
    write_rows(ctx.path("data", "samples.jsonl"), samples)
    supervised = sum(sum(sample["loss_mask"]) for sample in samples)
    left = {"repeating": len(different) - len(sound), "unsupervised": len(sound) - len(samples)}
    figures = {
        "prompts": len(samples), "answer_tokens": supervised, "skipped": left["unsupervised"], "dropped": left["repeating"],
        "evaluated": evaluated,
    }  # fmt: skip
    record(ctx, "regenerate", figures, str(folder), remade=False)
    aside = _states(ctx, store, samples, files, str(states))
    counts = {"samples": len(samples) - aside, "put_aside": aside, "repeated": repeated}
    return counts | left | {"evaluated": evaluated}


def _states(ctx: StageContext, store: StateStore, samples: Sequence[Row], files: dict[int, Path], source: str) -> int:
    """Check and link the states of every sample; how many were put aside."""
    began = time.monotonic()
    quarantine, done = Quarantine(store.folder), dict[int, StateRow]()
    for number, sample in enumerate(samples, 1):
        file = files.get(sample["index"])
        try:
            if file is None:
                raise StateError("there is no file of its states")
            done[sample["index"]] = store.adopt(file, sample, keep=True)
        except Misfit as error:
            raise VerbError(
                "usage", f"{file} does not fit {ctx.spec.target.name}: {error}.",
                f"Name the target that it was made for; this one's captured layers are {ctx.spec.target.captured_layers}.",
            ) from error  # fmt: skip
        except MixedUp as error:
            # Which of the two is wrong cannot be told, and neither can be asked for again.
            first = next(row for row in samples if row["index"] == error.other)
            done.pop(error.other, None)
            for one in (first, sample):
                quarantine.put(one, str(error), tries=1, attempt=0, now=time.time())
        except StateError as error:
            quarantine.put(sample, str(error), tries=1, attempt=0, now=time.time())
        ctx.journal.progress("extract", number, len(samples), "samples", force=False)
    _judge(ctx, quarantine, len(samples))
    _seal(ctx, store, done, quarantine, source, time.monotonic() - began)
    return len(quarantine.rows)


def _judge(ctx: StageContext, quarantine: Quarantine, asked: int) -> None:
    """Too many samples without right states are no import: a draft would be trained on what is left of something broken."""
    for index in quarantine.rows:
        (ctx.run_dir / "states" / f"hs_{index}.safetensors").unlink(missing_ok=True)
    aside = len(quarantine.rows)
    found = guards.put_aside(aside, asked, ctx.spec.guards, quarantine.reasons(), all_asked=True)
    if aside == asked or any(finding.response == "stop" for finding in found):
        raise VerbError(
            "usage",
            f"{aside} of {asked} samples have no right states ({quarantine.reasons()}).",
            "Extract those again, or raise guards.quarantined_share to import the others.",
        )


def _seal(
    ctx: StageContext, store: StateStore, done: dict[int, StateRow], quarantine: Quarantine, source: str, seconds: float
) -> None:
    store.seal(done)
    rows = done.values()
    sums = {"samples": len(done), "tokens": sum(row.tokens for row in rows), "bytes": sum(row.bytes for row in rows)}
    record(ctx, "extract", sums | {"quarantined": len(quarantine.rows)}, source, seconds)


def from_shares(ctx: StageContext, shares: Sequence[Path]) -> dict[str, Any]:
    """Fill the run with the data of one run and the states of all its shares. Answers the counts; raises VerbError."""
    first = shares[0]
    for stage, module in (("prepare", prepare), ("regenerate", regenerate)):
        found = rundir.read_object(first / "stages" / f"{stage}.json")
        for name in module.OUTPUTS:
            sums = [_told_sum(share, stage, name) for share in shares]
            for share, told in zip(shares, sums, strict=True):
                if told != sums[0]:
                    raise VerbError(
                        "usage", f"{share.name} and {first.name} have other files {name}, so they are no shares of one run.",
                        "Fork the shares from one run whose regenerate stage has finished.",
                    )  # fmt: skip
            if not sums[0]:
                continue
            content = (first / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != sums[0]:
                raise VerbError(
                    "usage", f"{name} of {first.name} is not what its stage {stage} left.", "Name another share first."
                )
            rundir.write_bytes(ctx.path(*Path(name).parts), content)
        record(ctx, stage, found.get("figures") or {}, str(first))
    began = time.monotonic()
    store = extract.open_store(ctx)
    quarantine, done = Quarantine(store.folder), dict[int, StateRow]()
    rows: dict[int, StateRow] = {}
    owner: dict[int, Path] = {}
    for share in shares:
        for row in _manifest(share):
            rows[row.index], owner[row.index] = row, share
    sizes = ((_states_of(owner[index], index), row.tokens) for index, row in rows.items())
    room.check(ctx, store, sizes, converts=False)
    aside = {index: row for share in shares for index, row in Quarantine(share / "states").rows.items() if _is_whole(row)}
    samples = read_rows(ctx.path("data", "samples.jsonl"))
    for number, sample in enumerate(samples, 1):
        index = sample["index"]
        if index in aside:
            quarantine.rows[index] = aside[index]
        elif index not in rows:
            raise VerbError(
                "usage", f"No share has the states of sample {index}.", "Name every share, each with its extract stage finished."
            )
        else:
            try:
                done[index] = store.take_over(_states_of(owner[index], index), rows[index], sample)
            except StateError as error:
                raise VerbError(
                    "usage", f"The states of sample {index} in {owner[index].name} cannot be used: {error}.",
                    f"Resume {owner[index].name} with --verify, then import again.",
                ) from error  # fmt: skip
        ctx.journal.progress("extract", number, len(samples), "samples", force=False)
    quarantine.write()
    _judge(ctx, quarantine, len(samples))
    _seal(ctx, store, done, quarantine, ", ".join(str(share) for share in shares), time.monotonic() - began)
    return {"samples": len(done), "put_aside": len(quarantine.rows)}


def _states_of(share: Path, index: int) -> Path:
    return share / "states" / f"hs_{index}.safetensors"


def _told_sum(share: Path, stage: str, name: str) -> str:
    """The SHA-256 that a share's record of a stage tells of one of its files; empty where it tells of none."""
    outputs = rundir.read_object(share / "stages" / f"{stage}.json").get("outputs")
    told = outputs.get(name) if isinstance(outputs, dict) else None
    return str(told.get("sha256") or "") if isinstance(told, dict) else ""


def _manifest(share: Path) -> list[StateRow]:
    """What a share's manifest vouches for. Raises VerbError (usage) where it is none."""
    try:
        found = [StateRow(**row) for row in read_rows(share / "states" / "manifest.jsonl")]
    except (OSError, ValueError, TypeError) as error:
        raise VerbError(
            "usage", f"The manifest of the states of {share.name} cannot be read ({error}).",
            f"Resume {share.name} with --verify, then import again.",
        ) from error  # fmt: skip
    return [row for row in found if isinstance(row.index, int)]


def _is_whole(row: Row) -> bool:
    """Whether a row of another's quarantine says what ours do."""
    return isinstance(row.get("id"), str) and isinstance(row.get("reason"), str)
