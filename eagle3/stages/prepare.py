"""Prepare: the target's folder checked, prompts read, duplicates dropped, and each conversation put on one side.

The split follows from the prompts' hashes alone: the same prompt is held out in every run with the same seed, in
whatever order the file lists it, and asking for more training prompts never moves one out of the held-out side.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import check_model_dir, check_shape, fingerprint
from eagle3.forecast import no_room
from eagle3.rows import write_rows
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.prompts import Prompt, content_hash, read_named, user_file
from eagle3.targets import model_dir

OUTPUTS = ("data/prompts.jsonl",)


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What this stage depends on; the content of a user's file and of the target's folder counts, not their names alone."""
    # While it has its default, a field that older runs lack is left out: their stages stay what they were.
    since = set() if spec.data.heldout_kinds else {"heldout_kinds"}
    data = spec.data.model_dump(exclude={"prompt_tokens"} | since)
    part: dict[str, Any] = {"data": data, "model": fingerprint(model_dir(spec.target.model))}
    if spec.data.prompts != "builtin":
        part["file"] = content_hash(user_file(spec.data.prompts))
    return part


def run(ctx: StageContext) -> dict[str, Any]:
    """Write ``data/prompts.jsonl``. Figures: train, heldout (conversations), kinds (kind → conversations), duplicates."""
    data = ctx.spec.data
    ctx.journal.progress("prepare", 0, data.train_prompts + data.heldout_prompts, "prompts")
    if short := no_room(ctx.spec, ctx.run_dir):
        raise StageError(f"{short.removesuffix('.')}; then resume the run, or fork it with other numbers.")
    check_shape(check_model_dir(ctx.model_dir), ctx.spec.target, ctx.model_dir)
    unique, duplicates = read_prompts(ctx)
    train, heldout = split(unique, data.train_prompts, data.heldout_prompts, data.seed, data.heldout_kinds)
    figures = write(ctx, train, heldout)
    ctx.journal.progress("prepare", len(train) + len(heldout), len(train) + len(heldout), "prompts")
    return figures | {"duplicates": duplicates}


def read_prompts(ctx: StageContext) -> tuple[list[Prompt], int]:
    """The different prompts that the spec names, and how many were left out for repeating an earlier one. Raises StageError."""
    prompts, unique = named(ctx.spec)
    duplicates = len(prompts) - len(unique)
    if duplicates:
        ctx.journal.event("data", f"{duplicates} of {len(prompts)} prompts repeat an earlier one and are left out.", level="warn")
    return unique, duplicates


def look_at_prompts(spec: RunSpec) -> None:
    """Find what this stage would find wrong with the prompts, before anything is made. Raises StageError in its words."""
    data = spec.data
    split(named(spec)[1], data.train_prompts, data.heldout_prompts, data.seed, data.heldout_kinds)


def named(spec: RunSpec) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts that a spec names, and the different ones among them. Raises StageError."""
    prompts = read_named(spec.data.prompts)
    return prompts, without_duplicates(prompts)


def write(ctx: StageContext, train: Sequence[Prompt], heldout: Sequence[Prompt]) -> dict[str, Any]:
    """Write ``data/prompts.jsonl``. Figures: train, heldout, kinds."""
    rows = [prompt.row("heldout") for prompt in heldout] + [prompt.row("train") for prompt in train]
    write_rows(ctx.path(OUTPUTS[0]), sorted(rows, key=lambda row: (row["split"], row["hash"])))
    kinds = Counter(prompt.kind for prompt in (*train, *heldout))
    return {"train": len(train), "heldout": len(heldout), "kinds": dict(sorted(kinds.items()))}


def without_duplicates(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts whose hash no earlier one has."""
    earliest: dict[str, Prompt] = {}
    for prompt in prompts:
        earliest.setdefault(prompt.hash, prompt)
    return list(earliest.values())


def split(
    prompts: Sequence[Prompt], train: int, heldout: int, seed: int, heldout_kinds: Sequence[str] = ()
) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts, disjoint, each with its kinds as even as the supply allows. With ``heldout_kinds`` the
    held-out prompts are of these kinds and no training prompt is.

    Raises StageError when there are fewer prompts than asked for.
    """
    if not heldout_kinds:
        if len(prompts) < train + heldout:
            raise StageError(
                f"{train} training and {heldout} held-out prompts are asked for, and there are {len(prompts)} different ones; "
                "lower data.train_prompts or data.heldout_prompts, or give a larger data.prompts file."
            )
        order = _round_robin(prompts, seed)
        held = list(itertools.islice(order, heldout))
        return list(itertools.islice(order, train)), held
    apart = of_kinds(prompts, heldout_kinds)
    others = [prompt for prompt in prompts if prompt.kind not in heldout_kinds]
    for what, found, asked in (("heldout", apart, heldout), ("train", others, train)):
        if len(found) < asked:
            raise StageError(
                f"data.heldout_kinds leaves {len(found)} different prompts for data.{what}_prompts, which is {asked}; "
                f"lower it, choose other kinds, or give a larger data.prompts file."
            )
    return list(itertools.islice(_round_robin(others, seed), train)), first(apart, heldout, seed)


def of_kinds(prompts: Sequence[Prompt], kinds: Sequence[str]) -> list[Prompt]:
    """The prompts of these kinds; all where none is named. Raises StageError for a kind that no prompt is of."""
    found = [prompt for prompt in prompts if not kinds or prompt.kind in kinds]
    if unknown := sorted(set(kinds) - {prompt.kind for prompt in found}):
        raise StageError(
            f"data.heldout_kinds names '{unknown[0]}', and no prompt is of that kind; "
            f"there are: {', '.join(sorted({prompt.kind for prompt in prompts}))}."
        )
    return found


def first(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """At most ``count`` of them, those that a run with this seed holds out first."""
    return list(itertools.islice(_round_robin(prompts, seed), count))


def _round_robin(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """One prompt of each kind in turn, each kind in an order that depends on the hashes and the seed alone."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    queues = [deque(sorted(by_kind[kind], key=lambda prompt: _rank(prompt, seed))) for kind in sorted(by_kind)]
    while queues:
        for queue in queues:
            yield queue.popleft()
        queues = [queue for queue in queues if queue]


def _rank(prompt: Prompt, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{prompt.hash}".encode()).hexdigest()
