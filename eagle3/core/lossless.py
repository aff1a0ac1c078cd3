"""Whether a draft changed what the target says: the same prompts answered with and without it, compared.

Greedy speculative decoding keeps only tokens that the target itself would have chosen, so the answers must be the
same. The one innocent exception is a tie: verifying several tokens in one pass rounds differently from one token a
pass, and where the target's first two choices are nearly equal the other one may win. The log-probability gap tells
a tie from an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TIE_GAP = {"float32": 0.02, "bfloat16": 0.25, "auto": 0.25}
"""Nats by which the target may prefer one token to the other and still be at a tie, by the target's dtype."""

_CONTEXT_TOKENS = 12


@dataclass(frozen=True)
class Answer:
    """One greedy answer, token by token. ``top[i]``: the most likely tokens at position i, text → log-probability."""

    prompt_id: str
    text: str
    token_ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    top: list[dict[str, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Answer:
        """Raises KeyError where a field is missing."""
        return cls(**{name: row[name] for name in ("prompt_id", "text", "token_ids", "tokens", "logprobs", "top")})


@dataclass(frozen=True)
class Divergence:
    """The first place where two answers to one prompt part. ``gap``: log-probability (nats) of the token chosen
    without the draft less that of the token chosen with it, both as the target saw them without the draft (``gap_with``: as it
    saw them with it); None where the other token was not among the most likely ones."""

    prompt_id: str
    position: int
    without: str
    with_draft: str
    gap: float | None
    gap_with: float | None
    tie: bool
    context: str

    def sentence(self) -> str:
        """The divergence for a person."""
        shown = "an unknown gap" if self.gap is None else f"a gap of {self.gap:.4f} nats"
        kind = "a tie in rounding" if self.tie else "more than rounding explains"
        return (
            f"{self.prompt_id} parts at token {self.position}: {self.without!r} without the draft, {self.with_draft!r} with it, "
            f"at {shown} ({kind})."
        )


@dataclass(frozen=True)
class Lossless:
    """The comparison of all prompts."""

    identical: int
    of: int
    tokens: int
    tie_gap: float
    divergences: list[Divergence]

    @property
    def errors(self) -> list[Divergence]:
        """The divergences that are no ties."""
        return [d for d in self.divergences if not d.tie]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(without: Sequence[Answer], with_draft: Sequence[Answer], tie_gap: float) -> Lossless:
    """Compare the answers pair by pair; both in the same order. ``tokens`` counts those compared, up to the parting.

    Raises ValueError where the prompts are not the same.
    """
    if [a.prompt_id for a in without] != [a.prompt_id for a in with_draft]:
        raise ValueError("The answers with and without the draft belong to different prompts.")
    pairs = list(zip(without, with_draft, strict=True))
    found = [d for a, b in pairs if (d := _first_divergence(a, b, tie_gap)) is not None]
    parted = {d.prompt_id: d.position for d in found}
    tokens = sum(parted.get(a.prompt_id, len(a.token_ids)) for a, _ in pairs)
    return Lossless(len(pairs) - len(found), len(pairs), tokens, tie_gap, found)


def _first_divergence(a: Answer, b: Answer, tie_gap: float) -> Divergence | None:
    if a.token_ids == b.token_ids:
        return None
    shorter = min(len(a.token_ids), len(b.token_ids))
    position = next((i for i in range(shorter) if a.token_ids[i] != b.token_ids[i]), shorter)
    gap = _gap(a, position, a, b)
    gap_with = _gap(b, position, a, b)
    seen = [abs(g) for g in (gap, gap_with) if g is not None]
    return Divergence(
        prompt_id=a.prompt_id,
        position=position,
        without=_token(a, position),
        with_draft=_token(b, position),
        gap=gap,
        gap_with=gap_with,
        # Either run's view of a tie will do: the two differ by the very rounding that decides it.
        tie=bool(seen) and min(seen) <= tie_gap,
        context="".join(a.tokens[max(0, position - _CONTEXT_TOKENS) : position]),
    )


def _gap(seen_by: Answer, position: int, a: Answer, b: Answer) -> float | None:
    if position >= len(seen_by.top):
        return None
    top = seen_by.top[position]
    first, second = top.get(_token(a, position)), top.get(_token(b, position))
    return None if first is None or second is None else first - second


def _token(answer: Answer, position: int) -> str:
    return answer.tokens[position] if position < len(answer.tokens) else "<end>"
