"""The held-out figures: how far the draft's tokens agree with what the target wrote. Simulated, never served.

Of each held-out answer every token from which ``ttt_steps`` more follow is a start; the draft proposes as many
tokens from there, each given the target's true ones before it. ``acc_pos[k]`` is the share of starts whose first k+1
proposals are all right, counted against the tokens of the target's whole vocabulary: a token that the draft cannot
propose is a miss. It has no randomness: same weights, same figures.

Of an experimental kind (`eagle3.training.kinds`) speculators' own counts are taken instead: the first position alone, and
the draft's vocabulary only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from speculators.model import SpeculatorModel

from eagle3.training.dataset import Collate, StatesDataset, fixed_packs
from eagle3.training.kinds import KINDS, Kind


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
) -> Heldout:
    """Run the draft over all samples of ``dataset``. ``call`` holds the forward's arguments (``ttt_steps``, loss);
    ``between`` is called before each pack and may raise."""
    was_training = model.training
    model.eval()
    try:
        packs = _forward(model, dataset, collate, call, device, autocast, between)
        return _exact(model, packs, call["ttt_steps"]) if kind.certified else _counted(packs, kind)
    finally:
        model.train(was_training)


Passed = tuple[dict[str, torch.Tensor], Any, dict[str, torch.Tensor]]
"""A pack that went through the draft: its tensors, the draft's proposals, and what the loss counted."""


def _forward(
    model: SpeculatorModel,
    dataset: StatesDataset,
    collate: Collate,
    call: dict[str, Any],
    device: torch.device,
    autocast: torch.dtype,
    between: Callable[[], None],
) -> Iterator[Passed]:
    for pack in fixed_packs(dataset):
        between()
        batch = collate([dataset[index] for index in pack])
        batch.pop("error_records", None)
        batch = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        with torch.autocast(device.type, dtype=autocast, enabled=autocast != torch.float32):
            proposals, _loss, metrics = model(**batch, **call)
        yield batch, proposals, metrics


def _counted(packs: Iterator[Passed], kind: Kind) -> Heldout:
    """From speculators' counts. A kind that draws at random draws the same in every validation, and the training's own draws
    go on as if there had been none."""
    counts: Counter[str] = Counter()
    samples = 0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for batch, _, metrics in packs:
            counts.update({name: float(value) for name, value in metrics.items()})
            samples += len(batch["document_ids"][0][batch["loss_mask"][0].bool()].unique())
    loss, loss_pos, acc_pos, accept_len = kind.step_figures(counts)
    return Heldout(acc_pos, accept_len, loss, loss_pos, round(counts["full_acc_total"]), samples)


def _exact(model: SpeculatorModel, packs: Iterator[Passed], steps: int) -> Heldout:
    right = [0] * steps
    starts = samples = 0
    losses = torch.zeros(steps, dtype=torch.float64)
    weight = 0
    for batch, proposals, metrics in packs:
        valid = _starts(batch["document_ids"][0], batch["loss_mask"][0], steps)
        alive = valid.clone()
        for step in range(steps):
            alive &= _in_target(model, proposals[step][0]) == _shifted(batch["input_ids"][0], step + 1)
            right[step] += int(alive.sum())
        starts += int(valid.sum())
        samples += len(batch["document_ids"][0][valid].unique())
        supervised = int(batch["loss_mask"].sum())
        losses += supervised * torch.tensor([float(metrics[f"loss_{k}_sum"]) for k in range(steps)], dtype=torch.float64)
        weight += supervised
    acc_pos = [count / starts if starts else 0.0 for count in right]
    loss_pos = (losses / max(weight, 1)).tolist()
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
