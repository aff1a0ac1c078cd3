"""Samples that are longer than a pack: said when they are made, before their states are extracted, and again by a training."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3.rows import read_rows_past_torn
from eagle3.stages.context import StageContext, StageError

_KIND = "samples-truncated"


def say_truncated(ctx: StageContext, split: str, masks: Sequence[Sequence[int]]) -> None:
    """Samples lose what does not fit into a pack: said once in a run. ``masks``: of each sample of a split, 1 on the tokens that
    the target wrote. Raises StageError where no answer is left to learn from or to judge by: the training would go on quietly,
    on nothing."""
    pack_tokens = ctx.spec.train.pack_tokens
    longer = sum(len(mask) > pack_tokens for mask in masks)
    blind = sum(not any(mask[1:pack_tokens]) for mask in masks)
    if masks and blind == len(masks):
        raise StageError(
            f"All {blind} {split} samples have their answers beyond the first {pack_tokens} tokens (train.pack_tokens); "
            "start a run with a larger train.pack_tokens, or use shorter prompts."
        )
    if longer:
        named = {"heldout": "held-out"}.get(split, split)
        lost = f", {blind} of them their whole answer" if blind else ""
        text = (
            f"{longer} of {len(masks)} {named} samples are longer than a pack of {pack_tokens} tokens and lose their "
            f"end{lost}; raise train.pack_tokens."
        )
        said = {event.get("split") for event in read_rows_past_torn(ctx.run_dir / "events.jsonl") if event.get("kind") == _KIND}
        if split not in said:
            ctx.journal.event(_KIND, text, level="warn", split=split)
