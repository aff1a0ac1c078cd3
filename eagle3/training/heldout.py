"""The held-out figures: how far the draft's tokens agree with what the target wrote. Simulated, never served.

Of each held-out answer every token from which ``ttt_steps`` more follow is a start; the draft proposes as many
tokens from there, each given the target's true ones before it. ``acc_pos[k]`` is the share of starts whose first k+1
proposals are all right, counted against the tokens of the target's whole vocabulary: a token that the draft cannot
propose is a miss. It has no randomness: same weights, same figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from speculators.models.eagle3.core import Eagle3DraftModel

from eagle3.training.dataset import Collate, StatesDataset, fixed_packs


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
    model: Eagle3DraftModel,
    dataset: StatesDataset,
    collate: Collate,
    call: dict[str, Any],
    device: torch.device,
    autocast: torch.dtype,
    between: Callable[[], None] = lambda: None,
) -> Heldout:
    """Run the draft over all samples of ``dataset``. ``call`` holds the forward's arguments (``ttt_steps``, loss);
    ``between`` is called before each pack and may raise."""
    was_training = model.training
    model.eval()
    steps: int = call["ttt_steps"]
    right = [0] * steps
    starts = samples = 0
    losses = torch.zeros(steps, dtype=torch.float64)
    weight = 0
    for pack in fixed_packs(dataset):
        between()
        batch = collate([dataset[index] for index in pack])
        batch.pop("error_records", None)
        batch = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        with torch.autocast(device.type, dtype=autocast, enabled=autocast != torch.float32):
            proposals, _loss, metrics = model(**batch, **call)
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
    model.train(was_training)
    acc_pos = [count / starts if starts else 0.0 for count in right]
    loss_pos = (losses / max(weight, 1)).tolist()
    return Heldout(acc_pos, 1.0 + sum(acc_pos), sum(loss_pos), loss_pos, starts, samples)


def _starts(document_ids: torch.Tensor, loss_mask: torch.Tensor, steps: int) -> torch.Tensor:
    """Positions whose token the target wrote and after which ``steps`` tokens follow in the same document."""
    return (document_ids != -1) & loss_mask.bool() & (_shifted(document_ids, steps, fill=-1) == document_ids)


def _shifted(row: torch.Tensor, by: int, fill: int = 0) -> torch.Tensor:
    return torch.cat([row[by:], row.new_full((min(by, len(row)),), fill)])


def _in_target(model: Eagle3DraftModel, tokens: torch.Tensor) -> torch.Tensor:
    """Draft token ids as ids of the target's vocabulary."""
    mapped: torch.Tensor = tokens if model.d2t is None else tokens + model.d2t[tokens]
    return mapped
