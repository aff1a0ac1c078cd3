"""What a training warns of: a draft that has learnt nothing."""

from __future__ import annotations

from typing import Any

from eagle3.stages.context import StageContext


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
