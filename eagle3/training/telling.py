"""What a training warns of: samples that lose their answers, and a draft that has learnt nothing."""

from __future__ import annotations

from typing import Any

from eagle3.journal import Journal
from eagle3.stages.context import StageContext, StageError
from eagle3.training.samples import Sample


def say_truncated(journal: Journal, split: str, samples: list[Sample], pack_tokens: int) -> None:
    """Samples lose what does not fit into a pack. Raises StageError where no answer is left to learn from or to judge by:
    the training would go on quietly, on nothing."""
    longer = sum(len(sample.input_ids) > pack_tokens for sample in samples)
    blind = sum(not any(sample.loss_mask[1:pack_tokens]) for sample in samples)
    if blind == len(samples):
        raise StageError(
            f"All {blind} {split} samples have their answers beyond the first {pack_tokens} tokens (train.pack_tokens); "
            "start a run with a larger train.pack_tokens, or use shorter prompts."
        )
    if longer:
        named = {"heldout": "held-out"}.get(split, split)
        lost = f", {blind} of them their whole answer" if blind else ""
        journal.event(
            "samples-truncated",
            f"{longer} of {len(samples)} {named} samples are longer than a pack of {pack_tokens} tokens and lose their "
            f"end{lost}; raise train.pack_tokens.",
            level="warn",
        )


def say_weak(ctx: StageContext, val: dict[str, Any], floor: dict[str, Any]) -> None:
    """Say where the draft has learnt nothing: with so little the cause is elsewhere than in the training."""
    first = val["acc_pos"][0]
    if first < ctx.spec.evaluate.broken_below or first <= floor["acc_pos"][0]:
        ctx.journal.event(
            "draft-weak",
            f"The draft is right at the first position for {first:.1%} of {val['tokens']} held-out tokens "
            f"({floor['acc_pos'][0]:.1%} untrained); check target.auxiliary_layers and the vocabulary, or train longer.",
            level="warn",
        )
