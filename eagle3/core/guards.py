"""Guards: what goes wrong quietly in a long run, noticed while it can still be mended. Pure: numbers in, findings out.

Each guard arms only after enough has been seen, trips once for one trouble, and is armed again when the trouble is over.
A finding states its threshold, the value, the counts it rests on and what to do. What then happens is the spec's choice.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3.core.spec.guards import Guards, Response


@dataclass(frozen=True)
class Finding:
    """A guard that tripped: ``kind`` is its name, ``found`` one sentence of what was seen, ``action`` the next step."""

    kind: str
    found: str
    action: str
    value: float
    threshold: float
    counts: dict[str, float] = field(default_factory=dict)
    response: Response = "warn"

    @property
    def text(self) -> str:
        return f"{self.found} {self.action}"


@dataclass(frozen=True)
class StepSeen:
    """What the guards are told of a training step."""

    step: int
    loss: float
    grad_norm: float
    first_acc: float
    tokens: int
    cards: Sequence[tuple[int, int]] = ()
    """Bytes in use and bytes in all of each rank's GPU; empty without GPUs."""


FLAT_STEPS_LEAST, FLAT_STEPS_MOST = 100, 1000
"""Bounds of what is judged flat where the spec leaves it open: fewer steps are noise (of 50, a pilot that learns tripped), and
so many show what is worth showing of the longest training."""


def flat_steps(settings: Guards, steps: int) -> int:
    """Steps whose halves are compared in a training of ``steps``."""
    if settings.flat_loss_steps:
        return max(4, settings.flat_loss_steps)
    return min(FLAT_STEPS_MOST, max(FLAT_STEPS_LEAST, steps // 2))


class TrainingGuards:
    """Watches the steps of one training, of ``steps`` in all. ``cards``: the names of its GPUs, in the order of the ranks."""

    def __init__(self, settings: Guards, steps: int = 0, cards: Sequence[str] = ()) -> None:
        self._set = settings
        self._cards = cards
        self._tokens = self._steps = 0
        self._losses: deque[float] = deque(maxlen=flat_steps(settings, steps))
        self._norms: deque[float] = deque(maxlen=settings.gradient_steps)
        self._firsts: deque[float] = deque(maxlen=100)
        self._first_memory: Sequence[tuple[int, int]] = ()
        self._first_memory_step = 0
        self._tripped: set[str] = set()

    def take(self, seen: StepSeen) -> list[Finding]:
        """What tripped at this step."""
        self._steps += 1
        found = [*self._finite(seen), *self._gradient(seen), *self._flat(seen), *self._first(seen), *self._memory(seen)]
        return [finding for finding in found if finding.response != "off"]

    def state(self) -> dict[str, Any]:
        """All that the judgement of the next step rests on, but for the GPUs' memory: that is each attempt's own."""
        return {
            "tokens": self._tokens,
            "losses": list(self._losses),
            "norms": list(self._norms),
            "firsts": list(self._firsts),
            "tripped": sorted(self._tripped - {"memory"}),
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Take up the ``state`` of an earlier attempt, as far as it has one."""
        self._tokens += int(state.get("tokens", 0))
        self._losses.extend(state.get("losses", ()))
        self._norms.extend(state.get("norms", ()))
        self._firsts.extend(state.get("firsts", ()))
        self._tripped.update(state.get("tripped", ()))

    def _once(self, kind: str, *, tripped: bool) -> bool:
        """Whether this is the beginning of a trouble."""
        if not tripped:
            self._tripped.discard(kind)
            return False
        if kind in self._tripped:
            return False
        self._tripped.add(kind)
        return True

    def _finite(self, seen: StepSeen) -> list[Finding]:
        bad = not (math.isfinite(seen.loss) and math.isfinite(seen.grad_norm))
        return [not_finite(seen.step, seen.loss)] if self._once("nan", tripped=bad) else []

    def _gradient(self, seen: StepSeen) -> list[Finding]:
        usual = statistics.median(self._norms) if len(self._norms) == self._norms.maxlen else None
        if math.isfinite(seen.grad_norm):
            self._norms.append(seen.grad_norm)
        if usual is None:
            return []
        limit = self._set.gradient_factor * usual
        if not self._once("gradient", tripped=seen.grad_norm > limit > 0):
            return []
        text = (
            f"The gradient norm {seen.grad_norm:.3g} at step {seen.step} is {seen.grad_norm / usual:.0f} times the usual "
            f"{usual:.3g}."
        )
        action = "One is an odd batch; where it comes again lower train.learning_rate."
        return [Finding("gradient", text, action, seen.grad_norm, limit, {"steps": float(len(self._norms))}, self._set.gradient)]

    def _flat(self, seen: StepSeen) -> list[Finding]:
        if math.isfinite(seen.loss):
            self._losses.append(seen.loss)
        if len(self._losses) < (self._losses.maxlen or 0):
            return []
        half = len(self._losses) // 2
        values = list(self._losses)
        before, after = statistics.fmean(values[:half]), statistics.fmean(values[half:])
        gained = (before - after) / before if before > 0 else 0.0
        if not self._once("flat-loss", tripped=gained < self._set.flat_loss_share):
            return []
        text = f"The loss fell by {gained:.2%} over the last {len(values)} steps (from {before:.3g} to {after:.3g})."
        action = (
            "It may have learnt what these samples hold: validate, and stop, or fork with more prompts or another learning rate."
        )
        counts = {"steps": float(len(values))}
        return [Finding("flat-loss", text, action, gained, self._set.flat_loss_share, counts, self._set.flat_loss)]

    def _first(self, seen: StepSeen) -> list[Finding]:
        self._tokens += seen.tokens
        self._firsts.append(seen.first_acc)
        if self._tokens < self._set.first_position_tokens or seen.step < self._set.first_position_steps:
            return []
        mean = statistics.fmean(self._firsts)
        if not self._once("first-position", tripped=mean < self._set.first_position_below):
            return []
        text = f"The draft is right at the first position for {mean:.1%} of the tokens after {self._tokens:,} of them."
        action = "Check target.auxiliary_layers, the vocabulary map and the norms: more training does not mend those."
        counts = {"tokens": float(self._tokens), "steps": float(len(self._firsts))}
        return [Finding("first-position", text, action, mean, self._set.first_position_below, counts, self._set.first_position)]

    def _memory(self, seen: StepSeen) -> list[Finding]:
        # Of this attempt: what a resumed one takes in its first steps is no creeping.
        if not seen.cards or self._steps < self._set.memory_after_steps:
            return []
        if not self._first_memory:
            self._first_memory, self._first_memory_step = seen.cards, seen.step
        grown = [(now - before) / total for (now, total), (before, _) in zip(seen.cards, self._first_memory, strict=True)]
        worst = max(range(len(grown)), key=grown.__getitem__)
        if not self._once("memory", tripped=grown[worst] > self._set.memory_share):
            return []
        used, total = seen.cards[worst]
        card = f"The memory of GPU {self._cards[worst]}" if worst < len(self._cards) else "GPU memory"
        text = (
            f"{card} grew by {grown[worst]:.0%} of the card since step {self._first_memory_step}, to {used / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB."
        )
        action = "Save now, and resume before it runs out."
        counts = {"step": float(seen.step)}
        return [Finding("memory", text, action, grown[worst], self._set.memory_share, counts, self._set.memory)]


def not_finite(step: int, value: float) -> Finding:
    """``value``: the loss or the gradient norm of the step, whichever was seen."""
    text = f"The loss or its gradient is not a finite number at step {step}; the last checkpoint is kept."
    action = "Lower train.learning_rate, or look at the hidden states, then resume or fork the run."
    return Finding("nan", text, action, value, math.inf, {"step": float(step)}, "stop")


def repeated_answers(shares: Sequence[float], settings: Guards) -> list[Finding]:
    """``shares``: of each answer, the share of tokens equal to the one before (near 0 in running text)."""
    if len(shares) < settings.answers_at_least:
        return []
    bad = sum(share > settings.repeated_share for share in shares)
    part = bad / len(shares)
    if part <= settings.repeated_answers or settings.repeated == "off":
        return []
    text = (
        f"{bad} of {len(shares)} answers are runs of repeated tokens. The server answers badly though it answers: it may be in "
        "extraction mode, its quantisation broken or its template wrong."
    )
    action = "Mend it, then run regenerate again."
    counts = {"answers": float(len(shares)), "repeated": float(bad)}
    return [Finding("repeated-tokens", text, action, part, settings.repeated_answers, counts, settings.repeated)]


def blind_samples(supervised: Sequence[int], settings: Guards) -> list[Finding]:
    """``supervised``: of each sample, the tokens that the loss sees."""
    if len(supervised) < settings.answers_at_least or settings.blind == "off":
        return []
    blind = sum(count == 0 for count in supervised)
    part = blind / len(supervised)
    if part <= settings.blind_share:
        return []
    text = f"{blind} of {len(supervised)} samples have no token that the loss sees."
    action = "Check the chat template and that the rows end with an assistant's turn; they cost extraction and teach nothing."
    counts = {"samples": float(len(supervised)), "blind": float(blind)}
    return [Finding("zero-mask", text, action, part, settings.blind_share, counts, settings.blind)]


def put_aside(count: int, asked: int, settings: Guards, reasons: str, *, all_asked: bool = False) -> list[Finding]:
    """``count`` of the ``asked`` samples have no usable states, for ``reasons``. Judged once enough were asked for, or all."""
    if settings.quarantined == "off" or not count or (asked < settings.quarantined_at_least and not all_asked):
        return []
    part = count / asked
    if part <= settings.quarantined_share:
        return []
    text = f"{count} of {asked} samples have no usable states ({reasons})."
    action = (
        "That is the server or the disk, not the samples: look at the server's log, mend it, then resume the run; "
        "states/quarantine.jsonl lists them."
    )
    counts = {"samples": float(asked), "quarantined": float(count)}
    return [Finding("quarantined", text, action, part, settings.quarantined_share, counts, settings.quarantined)]


def low_coverage(share: float, tokens: int, settings: Guards, size: int) -> list[Finding]:
    """``share``: of the held-out answers' tokens, those that the draft vocabulary of ``size`` tokens holds."""
    if tokens < settings.coverage_tokens or share >= settings.coverage_below or settings.coverage == "off":
        return []
    text = (
        f"The draft vocabulary of {size:,} tokens holds {share:.1%} of the held-out answers' tokens; the others are never "
        "accepted."
    )
    action = "Raise vocabulary.size, or train on more prompts."
    return [Finding("coverage", text, action, share, settings.coverage_below, {"tokens": float(tokens)}, settings.coverage)]
