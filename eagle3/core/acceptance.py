"""Acceptance of a served draft, from two readings of vLLM's speculative-decoding counters.

A *draft* is one proposal of up to k tokens. ``acc_pos[i]`` is the joint probability that its first i+1 tokens were
all accepted, and the acceptance length ``1 + accepted / drafts`` is the number of tokens that one step of the
target yields (the target's own token is the 1). Hence ``sum(acc_pos) == accept_len - 1``.

These are *served* figures. A training run's held-out accuracies ("simulated") are another thing and never enter here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

Z_95 = 1.959964
"""Two-sided 95 % point of the normal distribution."""

Interval = tuple[float, float]

ALL_KINDS = "all"
"""Kind of the prompts of which none is told."""


class CountersError(ValueError):
    """The metrics hold no usable speculative-decoding counters; the message is one sentence that says which."""


@dataclass(frozen=True)
class SpecCounters:
    """One reading, summed over the engines. ``per_position[i]``: drafts whose first i+1 tokens were accepted."""

    drafts: float = 0
    draft_tokens: float = 0
    accepted: float = 0
    per_position: tuple[float, ...] = ()

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any]) -> SpecCounters:
        """Pick the four counters out of a server's metrics (name → number; per position: position → number).

        Raises CountersError where one is missing: the server then runs without speculative decoding.
        """
        missing = [name for name in (DRAFTS, DRAFT_TOKENS, ACCEPTED, PER_POSITION) if name not in metrics]
        if missing:
            raise CountersError(f"The server's metrics lack {', '.join(missing)}; it was not started with a draft.")
        by_position = {int(position): float(value) for position, value in metrics[PER_POSITION].items()}
        return cls(
            drafts=float(metrics[DRAFTS]),
            draft_tokens=float(metrics[DRAFT_TOKENS]),
            accepted=float(metrics[ACCEPTED]),
            per_position=tuple(by_position.get(i, 0.0) for i in range(max(by_position, default=-1) + 1)),
        )

    def _flat(self) -> tuple[float, ...]:
        return (self.drafts, self.draft_tokens, self.accepted, *self.per_position)


@dataclass(frozen=True)
class Acceptance:
    """What happened between two readings. ``new_window``: the counters fell in between (the server was started
    anew), so the counts reach back to its start only."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_pos: tuple[int, ...]
    new_window: bool = False

    @property
    def accept_len(self) -> float:
        """Tokens per step of the target, 1 to k+1; 1 where nothing was drafted (the target's own token)."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def acc_pos(self) -> list[float]:
        """Joint acceptance by position, falling; empty where nothing was drafted."""
        return [n / self.drafts for n in self.accepted_per_pos] if self.drafts else []

    @property
    def conditional(self) -> list[float | None]:
        """Acceptance of a position given that those before it were accepted; None where they never were."""
        before = [self.drafts, *self.accepted_per_pos[:-1]]
        return [n / b if b else None for n, b in zip(self.accepted_per_pos, before, strict=True)]

    @property
    def acc_pos_intervals(self) -> list[Interval]:
        """95 % Wilson interval of each ``acc_pos``. Drafts of one answer resemble each other, so the true
        uncertainty is somewhat larger."""
        return [wilson(n, self.drafts) for n in self.accepted_per_pos] if self.drafts else []

    @property
    def accept_len_interval(self) -> Interval:
        """95 % normal interval of the length. The number accepted by a draft is at least i+1 with probability
        ``acc_pos[i]``, so its second moment is the sum of (2i+1)·acc_pos[i] and nothing need be resampled."""
        if not self.drafts:
            return (1.0, 1.0 + len(self.accepted_per_pos))
        mean = self.accept_len - 1
        second = sum((2 * i + 1) * p for i, p in enumerate(self.acc_pos))
        half = Z_95 * math.sqrt(max(second - mean * mean, 0.0) / self.drafts)
        return (max(1.0, 1 + mean - half), min(1.0 + len(self.accepted_per_pos), 1 + mean + half))

    def problems(self) -> list[str]:
        """What in the counts cannot be, one sentence each; empty when they agree with one another."""
        found = []
        if sum(self.accepted_per_pos) != self.accepted:
            found.append(f"The accepted tokens by position add up to {sum(self.accepted_per_pos)}, not to {self.accepted}.")
        if any(later > earlier for earlier, later in itertools.pairwise((self.drafts, *self.accepted_per_pos))):
            found.append(f"Acceptance must fall by position, from {self.drafts} drafts: {list(self.accepted_per_pos)}.")
        if self.accepted > self.draft_tokens:
            found.append(f"{self.accepted} tokens were accepted of {self.draft_tokens} drafted.")
        return found

    def figures(self) -> dict[str, Any]:
        """The figures with their counts, as they are written and shown."""
        return {
            "accept_len": round(self.accept_len, 4),
            "accept_len_interval": [round(x, 4) for x in self.accept_len_interval],
            "acc_pos": [round(p, 4) for p in self.acc_pos],
            "acc_pos_intervals": [[round(x, 4) for x in pair] for pair in self.acc_pos_intervals],
            "conditional": [None if p is None else round(p, 4) for p in self.conditional],
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted": self.accepted,
            "accepted_per_pos": list(self.accepted_per_pos),
            "new_window": self.new_window,
        }


def of_histogram(accepted: Sequence[int], draft_tokens: int) -> Acceptance:
    """The acceptance of one answer: ``accepted[j]`` of its drafts had j tokens accepted."""
    return Acceptance(
        drafts=sum(accepted),
        draft_tokens=draft_tokens,
        accepted=sum(j * count for j, count in enumerate(accepted)),
        accepted_per_pos=tuple(sum(accepted[i:]) for i in range(1, len(accepted))),
    )


def together(parts: Iterable[Acceptance]) -> Acceptance:
    """The counts of several windows as one."""
    found = list(parts)
    per_pos = itertools.zip_longest(*(part.accepted_per_pos for part in found), fillvalue=0)
    return Acceptance(
        drafts=sum(part.drafts for part in found),
        draft_tokens=sum(part.draft_tokens for part in found),
        accepted=sum(part.accepted for part in found),
        accepted_per_pos=tuple(sum(counts) for counts in per_pos),
        new_window=any(part.new_window for part in found),
    )


def between(before: SpecCounters, after: SpecCounters) -> Acceptance:
    """The acceptance between two readings. Counters only rise while a server lives; where one fell, the server was
    started anew and ``after`` alone is the window."""
    width = max(len(before.per_position), len(after.per_position))
    before, after = _widened(before, width), _widened(after, width)
    fell = any(b > a for b, a in zip(before._flat(), after._flat(), strict=True))
    if fell:
        before = _widened(SpecCounters(), width)
    return Acceptance(
        drafts=round(after.drafts - before.drafts),
        draft_tokens=round(after.draft_tokens - before.draft_tokens),
        accepted=round(after.accepted - before.accepted),
        accepted_per_pos=tuple(round(a - b) for a, b in zip(after.per_position, before.per_position, strict=True)),
        new_window=fell,
    )


def wilson(successes: int, trials: int, z: float = Z_95) -> Interval:
    """Wilson's score interval of a proportion; (0, 1) where nothing was tried. Raises ValueError where
    ``successes`` is not between 0 and ``trials``."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials cannot be.")
    if trials == 0:
        return (0.0, 1.0)
    p = successes / trials
    spread = 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / spread
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / spread
    # At the ends the formula is exact but its rounding is not.
    return (0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == trials else min(1.0, centre + half))


def _widened(counters: SpecCounters, width: int) -> SpecCounters:
    filled = counters.per_position + (0.0,) * (width - len(counters.per_position))
    return SpecCounters(counters.drafts, counters.draft_tokens, counters.accepted, filled)
