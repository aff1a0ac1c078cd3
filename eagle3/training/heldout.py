"""The held-out figures: how far the draft's tokens agree with what the target wrote. Simulated, never served.

Of each held-out answer every token from which ``ttt_steps`` more follow is a start; the draft proposes as many
tokens from there, each given the target's true ones before it. ``acc_pos[k]`` is the share of starts whose first k+1
proposals are all right, counted against the tokens of the target's whole vocabulary: a token that the draft cannot
propose is a miss. It has no randomness: same weights, same figures.

Of an experimental kind (`eagle3.training.kinds`) speculators' own counts are taken instead: the first position alone, and
the draft's vocabulary only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from speculators.model import SpeculatorModel

from eagle3.training.dataset import Collate, StatesDataset, fixed_packs
from eagle3.training.group import Group
from eagle3.training.kinds import KINDS, Kind

T = TypeVar("T")

READERS = 2
"""Threads that read packs ahead for one rank on a GPU: so many packs lie in its memory beside the one that is scored."""


@dataclass(frozen=True)
class Heldout:
    """``tokens`` is the number of starts, ``samples`` that of the answers they lie in."""

    acc_pos: list[float]
    accept_len: float
    loss: float
    loss_pos: list[float]
    tokens: int
    samples: int

    def figures(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """What one pack adds to the figures: ``pack`` is its place among all, ``samples`` those scored in it, ``sums`` the rest."""

    pack: int
    samples: int
    sums: dict[str, float]


@torch.no_grad()
def evaluate(
    model: SpeculatorModel,
    dataset: StatesDataset,
    collate: Collate,
    call: dict[str, Any],
    device: torch.device,
    autocast: torch.dtype,
    between: Callable[[], None] = lambda: None,
    kind: Kind = KINDS["eagle3"],
    *,
    group: Group | None = None,
    readers: int = 0,
) -> Heldout:
    """Run the draft over all samples of ``dataset``. ``call`` holds the forward's arguments (``ttt_steps``, loss);
    ``between`` is called before each pack and may raise; so many ``readers`` read the next packs while one is scored.

    The ranks of ``group`` share the packs, and what they find is added up in the packs' order: the same figures to the last bit
    with any number of ranks. Collective.
    """
    group = group or Group()
    packs = fixed_packs(dataset)

    def read(number: int) -> dict[str, Any]:
        batch = collate([dataset[index] for index in packs[number % len(packs)]])
        batch.pop("error_records", None)
        if readers and device.type == "cuda":
            return {key: value.pin_memory() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        return batch

    found = []
    was_training = model.training
    model.eval()
    try:
        with closing(ahead(read, turns(len(packs), group), readers)) as batches:
            for number, batch in batches:
                between()
                on_device = {
                    key: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
                    for key, value in batch.items()
                }
                part = _score(model, number, on_device, call, autocast, kind)
                if number < len(packs):
                    found.append(part)
    finally:
        model.train(was_training)
    parts = sorted((part for own in group.gather_objects(found) for part in own), key=lambda part: part.pack)
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part.sums)
    return _figures(sums, sum(part.samples for part in parts), call, kind)


def turns(packs: int, group: Group) -> list[int]:
    """Which of the ``packs`` this rank scores. Where they do not share out evenly, a rank gets numbers beyond the last one: packs
    that are run once more and not counted, for the parts of a sharded draft come together in each forward pass, on all ranks."""
    return list(range(group.rank, -(-packs // group.size) * group.size, group.size))


def ahead(read: Callable[[int], T], numbers: Iterable[int], readers: int) -> Generator[tuple[int, T], None, None]:
    """Each number with what ``read`` gives for it, in order; while one is worked on, the next ones are read by ``readers``
    threads (0: by nobody). An error of ``read`` is raised here, as it is, when its turn comes.

    Threads and no loader processes: a scoring is over within minutes, reading and copying leave Python to others, and packs in
    shared memory would come on top of those that the training's own loaders hold meanwhile.
    """
    if not readers:
        yield from ((number, read(number)) for number in numbers)
        return
    pool, rest, waiting = ThreadPoolExecutor(readers), iter(numbers), deque[tuple[int, Future[T]]]()
    try:
        while True:
            waiting.extend((number, pool.submit(read, number)) for number in islice(rest, readers - len(waiting)))
            if not waiting:
                return
            number, pending = waiting.popleft()
            found = pending.result()
            # The reader that is free now goes on while this one is worked on.
            waiting.extend((later, pool.submit(read, later)) for later in islice(rest, 1))
            yield number, found
    finally:
        pool.shutdown(cancel_futures=True)


def _score(
    model: SpeculatorModel, number: int, batch: dict[str, Any], call: dict[str, Any], autocast: torch.dtype, kind: Kind
) -> Part:
    """A kind that draws at random draws the same for a pack in every validation, whoever scores it, and the training's own draws
    go on as if there had been none."""
    device = batch["input_ids"].device
    with torch.random.fork_rng([device] if device.type == "cuda" else []) if kind.draws else nullcontext():
        if kind.draws:
            torch.manual_seed(number)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast != torch.float32):
            proposals, _loss, metrics = model(**batch, **call)
    return (
        _exact(model, number, batch, proposals, metrics, call["ttt_steps"])
        if kind.certified
        else _counted(number, batch, metrics)
    )


def _counted(number: int, batch: dict[str, Any], metrics: Mapping[str, Any]) -> Part:
    """speculators' own counts."""
    samples = len(batch["document_ids"][0][batch["loss_mask"][0].bool()].unique())
    return Part(number, samples, {name: float(value) for name, value in metrics.items()})


def _exact(
    model: SpeculatorModel, number: int, batch: dict[str, Any], proposals: Any, metrics: Mapping[str, Any], steps: int
) -> Part:
    valid = _starts(batch["document_ids"][0], batch["loss_mask"][0], steps)
    supervised = int(batch["loss_mask"].sum())
    sums: dict[str, float] = {"starts": int(valid.sum()), "supervised": supervised}
    alive = valid.clone()
    for step in range(steps):
        alive &= _in_target(model, proposals[step][0]) == _shifted(batch["input_ids"][0], step + 1)
        sums[f"right_{step}"] = int(alive.sum())
        sums[f"loss_{step}"] = supervised * float(metrics[f"loss_{step}_sum"])
    return Part(number, len(batch["document_ids"][0][valid].unique()), sums)


def _figures(sums: Mapping[str, float], samples: int, call: Mapping[str, Any], kind: Kind) -> Heldout:
    if not kind.certified:
        loss, loss_pos, acc_pos, accept_len = kind.step_figures(sums)
        return Heldout(acc_pos, accept_len, loss, loss_pos, round(sums["full_acc_total"]), samples)
    positions, starts = range(call["ttt_steps"]), int(sums["starts"])
    acc_pos = [sums[f"right_{step}"] / starts if starts else 0.0 for step in positions]
    loss_pos = [sums[f"loss_{step}"] / max(sums["supervised"], 1) for step in positions]
    return Heldout(acc_pos, 1.0 + sum(acc_pos), sum(loss_pos), loss_pos, starts, samples)


def _starts(document_ids: torch.Tensor, loss_mask: torch.Tensor, steps: int) -> torch.Tensor:
    """Positions whose token the target wrote and after which ``steps`` tokens follow in the same document."""
    return (document_ids != -1) & loss_mask.bool() & (_shifted(document_ids, steps, fill=-1) == document_ids)


def _shifted(row: torch.Tensor, by: int, fill: int = 0) -> torch.Tensor:
    return torch.cat([row[by:], row.new_full((min(by, len(row)),), fill)])


def _in_target(model: SpeculatorModel, tokens: torch.Tensor) -> torch.Tensor:
    """Draft token ids as ids of the target's vocabulary."""
    mapped: torch.Tensor = tokens if model.d2t is None else tokens + model.d2t[tokens]
    return mapped
