"""What the stage regenerate looks for in answers, looked for in those that came from elsewhere: runs of repeated tokens, and
samples that the loss sees nothing of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from eagle3.core import guards
from eagle3.rows import Row
from eagle3.runner.errors import VerbError
from eagle3.stages import guarding, samples
from eagle3.stages.context import StageContext

_FIELDS = {"repeated-tokens": "guards.repeated", "zero-mask": "guards.blind"}


def judge(ctx: StageContext, rows: Sequence[Row]) -> list[Row]:
    """The rows without those whose answers are runs of repeated tokens; a guard that only warns is told in the run's events.

    Raises VerbError (usage) where a guard pauses or stops: nobody waits at an import, and nothing is made.
    """
    limits = ctx.spec.guards
    shares = [repeated_share(row) for row in rows]
    supervised = [sum(row["loss_mask"][1:]) for row in rows]
    found = [*guards.repeated_answers(shares, limits), *guards.blind_samples(supervised, limits)]
    for finding in found:
        if finding.response in ("pause", "stop"):
            field = _FIELDS[finding.kind]
            raise VerbError("usage", finding.found, f"Make them again, or import them all the same: --set {field}=warn.")
    guarding.act(ctx, found)
    return [row for row, share in zip(rows, shares, strict=True) if share <= limits.repeated_share]


def repeated_share(row: Row) -> float:
    """The share of repeated tokens of a row's worst answer: an answer is what the mask marks in one piece."""
    answers = itertools.groupby(zip(row["input_ids"], row["loss_mask"], strict=True), key=lambda pair: bool(pair[1]))
    return max((samples.repeated_share([token for token, _ in pairs]) for taught, pairs in answers if taught), default=0.0)
