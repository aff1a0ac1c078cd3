"""Acceptance of a served draft, from two readings of vLLM's speculative-decoding counters.

A *draft* is one proposal of up to k tokens. ``acc_pos[i]`` is the joint probability that its first i+1 tokens were
all accepted, and the acceptance length ``1 + accepted / drafts`` is the number of tokens that one step of the
target yields (the target's own token is the 1). Hence ``sum(acc_pos) == accept_len - 1``.

The intervals take the *answers* for independent, where each one's counts are known; drafts of one answer are not.

These are *served* figures. A training run's held-out accuracies ("simulated") are another thing and never enter here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.core.intervals import Z_95, Interval, ratio_variance, share_interval, t_95, wilson

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

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
    anew), so the counts reach back to its start only. ``answers``: the same counts answer by answer, where they are known."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_pos: tuple[int, ...]
    new_window: bool = False
    answers: tuple[Acceptance, ...] = ()

    @property
    def independent(self) -> int | None:
        """How many answers the intervals rest on: those with a draft. None where each answer's counts are not known; the
        intervals then take every draft for independent, and are too narrow."""
        return len(self._clusters) if self.answers else None

    @property
    def _clusters(self) -> list[Acceptance]:
        return [one for one in self.answers if one.drafts]

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
        """95 % interval of each ``acc_pos``: Wilson's, for as many independent drafts as the spread between the answers leaves
        (``intervals``), and never more than there were. (0, 1) of a single answer."""
        if not self.drafts:
            return []
        if not self.answers:
            return [wilson(n, self.drafts) for n in self.accepted_per_pos]
        point = t_95(len(self._clusters) - 1)
        return [
            share_interval(
                n / self.drafts,
                self._variance([sum(one.accepted_per_pos[i : i + 1]) for one in self._clusters]),
                self.drafts,
                point,
            )
            for i, n in enumerate(self.accepted_per_pos)
        ]

    @property
    def accept_len_interval(self) -> Interval:
        """95 % interval of the length, by Student's distribution with the answers less one as degrees of freedom; all that is
        possible of a single answer.

        Never narrower than with every draft independent. The number accepted by a draft is at least i+1 with probability
        ``acc_pos[i]``, so its second moment is the sum of (2i+1)·acc_pos[i] and nothing need be resampled."""
        longest = 1.0 + len(self.accepted_per_pos)
        if not self.drafts:
            return (1.0, longest)
        mean = self.accept_len - 1
        second = sum((2 * i + 1) * p for i, p in enumerate(self.acc_pos))
        variance, point = max(second - mean * mean, 0.0) / self.drafts, Z_95
        if self.answers:
            variance = max(variance, self._variance([one.accepted for one in self._clusters]))
            point = t_95(len(self._clusters) - 1)
        if math.isinf(variance):
            return (1.0, longest)
        half = point * math.sqrt(variance)
        return (max(1.0, 1 + mean - half), min(longest, 1 + mean + half))

    def _variance(self, accepted: Sequence[int]) -> float:
        """Of what was accepted for each draft; ``accepted``: by answer."""
        return ratio_variance(accepted, [one.drafts for one in self._clusters])

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
            "answers": self.independent,
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
    """The counts of several answers as one, and each one's beside them."""
    found = list(parts)
    per_pos = itertools.zip_longest(*(part.accepted_per_pos for part in found), fillvalue=0)
    return Acceptance(
        drafts=sum(part.drafts for part in found),
        draft_tokens=sum(part.draft_tokens for part in found),
        accepted=sum(part.accepted for part in found),
        accepted_per_pos=tuple(sum(counts) for counts in per_pos),
        new_window=any(part.new_window for part in found),
        answers=tuple(found),
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


def _widened(counters: SpecCounters, width: int) -> SpecCounters:
    filled = counters.per_position + (0.0,) * (width - len(counters.per_position))
    return SpecCounters(counters.drafts, counters.draft_tokens, counters.accepted, filled)
