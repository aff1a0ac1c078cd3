"""The verdict: is this draft worth serving, here? One word, one sentence, and every threshold beside its figure.

Only served figures decide: vLLM's counters, and the speed with and without the draft at the same concurrencies on the
same prompts. Useful is a draft up to a concurrency: it gains while few requests are in flight and costs when many are.
The order matters: too little evidence is said before anything is concluded from it, a broken draft before it is called
slow, and a draft that costs time at every concurrency is "not useful on this machine" whatever its quality: no other word
is true of one that is trained well, measured well and slower. docs/evaluation.md has the words with their thresholds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eagle3.core.acceptance import Acceptance
from eagle3.core.evaluation import ALONE, Point, Speed, between_label, break_even, gain_label, rounded
from eagle3.core.intervals import Interval
from eagle3.core.lossless import Lossless

INSUFFICIENT = "insufficient evidence"
BROKEN = "broken"
NOT_USEFUL = "not useful on this machine"
UNDERTRAINED = "undertrained"
USEFUL = "useful"

WORDS = (INSUFFICIENT, BROKEN, NOT_USEFUL, UNDERTRAINED, USEFUL)

UNDERTRAINED_BELOW = 0.36
"""Position-0 acceptance that a pilot of 5,000 samples reaches (36 to 41 %, acceptance length about 1.5)."""

POSSIBLE_SPEEDUP = 1.05
"""Speed-up ÷ acceptance length that one measurement's noise explains. A step of the target that checks several tokens is
never cheaper than one that makes one, so a draft cannot speed it up by more than its acceptance length."""

AGREES_WITHIN = 1.5
"""Simulated ÷ served position-0 acceptance up to which the two agree; simulated ones overstate a little."""

BUSY_ABOVE = 0.15
"""Share of the CPU that others may take before the sentence says so: the speeds are then rough."""

USEFUL_SPEEDUP = 1.05
"""Speed with ÷ without the draft from which the gain is more than the noise of one measurement. All of its interval must
also be above 1, where each answer's speed is known."""

MIN_PROMPTS = 8
"""Fewer prompts than this carry no firm verdict: the intervals allow for it (Student's factor is 2.4 with 8 answers and 3.2 with
4), but not for so few being no sample of what a server is asked."""


@dataclass(frozen=True)
class Evidence:
    """What was measured. ``tok_s``: generated tokens per second over all requests, None where not measured."""

    acceptance: Acceptance
    tok_s: float | None
    tok_s_no_draft: float | None
    concurrency: int
    lossless: Lossless | None = None
    other_cpu: float = 0.0
    """The larger share of the machine's CPU, 0 to 1, that other work took while one of the two speeds was measured."""
    simulated_first: float | None = None
    """Position-0 acceptance on the held-out samples in training. It decides nothing: it only tells where to look when the
    served one is low."""
    points: tuple[Point, ...] = ()
    """The speeds at every concurrency that was measured; empty: those above alone."""
    prompts: int | None = None
    """How many prompts the acceptance is of; None: as many as the acceptance has answers."""

    @property
    def answered(self) -> int | None:
        """How many answers the evidence is of; None where nobody tells."""
        told = [count for count in (self.acceptance.independent, self.prompts) if count is not None]
        return min(told, default=None)

    @property
    def curve(self) -> list[Point]:
        """Where both speeds are known, ascending."""
        alone = Point(self.concurrency, Speed(self.tok_s_no_draft or 0.0), Speed(self.tok_s or 0.0, self.acceptance))
        found = [point for point in self.points or (alone,) if point.speedup is not None]
        return sorted(found, key=lambda point: point.concurrency)

    @property
    def useful_at(self) -> list[int]:
        """The concurrencies at which the draft gains more than noise, and clear of the spread between the prompts."""
        return [point.concurrency for point in self.curve if (point.speedup or 0.0) >= USEFUL_SPEEDUP and _interval(point)[0] > 1]

    @property
    def useful_up_to(self) -> int | None:
        """The concurrency up to which the draft gains at each one measured; None where it gains at none, or not at a lower
        one."""
        useful = self.useful_at
        lowest = [point.concurrency for point in self.curve][: len(useful)]
        return useful[-1] if useful and useful == lowest else None

    @property
    def speedup(self) -> float | None:
        """Speed with the draft ÷ speed without it."""
        return self.tok_s / self.tok_s_no_draft if self.tok_s and self.tok_s_no_draft else None

    @property
    def break_even_len(self) -> float | None:
        """The acceptance length at which the draft would pay for itself: the served length × (seconds a token with
        the draft ÷ seconds a token without it)."""
        if not self.acceptance.drafts:
            return None
        return break_even(self.acceptance.accept_len, self.tok_s_no_draft or 0.0, self.tok_s or 0.0)


@dataclass(frozen=True)
class Verdict:
    """``thresholds`` holds the thresholds, and beside them the figures and counts they were held against."""

    verdict: str
    verdict_text: str
    thresholds: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(evidence: Evidence, *, min_drafts: int, broken_below: float, min_prompts: int = MIN_PROMPTS) -> Verdict:
    """The verdict. ``min_drafts``, ``min_prompts``: fewer are no evidence; ``broken_below``: position-0 acceptance (0 to 1)
    under which layer ids, vocabulary map or norms are wrong rather than the training short."""
    word, text = _decide(evidence, min_drafts, broken_below, min_prompts)
    if evidence.other_cpu > BUSY_ABOVE:
        text += f" The speeds are rough: other work took up to {evidence.other_cpu:.0%} of the CPU meanwhile."
    served = evidence.acceptance
    measured = served.figures()
    return Verdict(
        word,
        text,
        {
            "min_drafts": min_drafts,
            "drafts": served.drafts,
            "min_prompts": min_prompts,
            "prompts": evidence.answered,
            "answers": served.independent,
            "broken_below": broken_below,
            "undertrained_below": UNDERTRAINED_BELOW,
            "acc_pos_0": measured["acc_pos"][0] if measured["acc_pos"] else None,
            "acc_pos_0_interval": measured["acc_pos_intervals"][0] if measured["acc_pos_intervals"] else None,
            "accept_len": measured["accept_len"],
            "accept_len_interval": measured["accept_len_interval"],
            "break_even_len": _rounded(evidence.break_even_len),
            "useful_speedup": USEFUL_SPEEDUP,
            "possible_speedup": round(served.accept_len * POSSIBLE_SPEEDUP, 4),
            "speedup": _rounded(evidence.speedup),
            "tok_s": _rounded(evidence.tok_s),
            "tok_s_no_draft": _rounded(evidence.tok_s_no_draft),
            "concurrency": evidence.concurrency,
            "speedups": {str(point.concurrency): _rounded(point.speedup) for point in evidence.curve},
            "speedup_intervals": {str(point.concurrency): rounded(point.speedup_interval) for point in evidence.curve},
            "useful_at": evidence.useful_at,
            "useful_up_to": evidence.useful_up_to,
            "other_cpu": _rounded(evidence.other_cpu),
            "busy_above": BUSY_ABOVE,
            "lossless_identical": evidence.lossless.identical if evidence.lossless else None,
            "lossless_of": evidence.lossless.of if evidence.lossless else None,
            "tie_gap": evidence.lossless.tie_gap if evidence.lossless else None,
        },
    )


def _decide(evidence: Evidence, min_drafts: int, broken_below: float, min_prompts: int) -> tuple[str, str]:
    served, lossless = evidence.acceptance, evidence.lossless
    if lossless and lossless.errors:
        return BROKEN, (
            f"Broken: {len(lossless.errors)} of {lossless.of} answers change with the draft by more than rounding explains; "
            f"{lossless.errors[0].sentence()} Do not serve it; check the server's version."
        )
    if problems := served.problems():
        return INSUFFICIENT, f"Insufficient evidence: the server's counters contradict each other. {problems[0]} Evaluate again."
    if served.drafts < min_drafts or not served.acc_pos:
        return INSUFFICIENT, (
            f"Insufficient evidence: {served.drafts} drafts were made and {min_drafts} are needed; "
            f"evaluate more prompts or more tokens a prompt."
        )
    if evidence.answered is not None and evidence.answered < min_prompts:
        return INSUFFICIENT, (
            f"Insufficient evidence: {served.drafts} drafts came of {evidence.answered} prompts and {min_prompts} prompts are "
            f"needed, for drafts of one answer resemble each other; evaluate more prompts."
        )
    first, (low, high) = served.acc_pos[0], served.acc_pos_intervals[0]
    counted = f"{served.drafts} drafts" + (f" of {evidence.answered} prompts" if evidence.answered else "")
    alone = "" if served.independent else f", {ALONE}"
    at_first = f"position 0 accepts {first:.1%} ({low:.1%} to {high:.1%}, {counted}{alone})"
    if high < broken_below:
        return BROKEN, (f"Broken: {at_first}, under {broken_below:.0%}; {_where_to_look(evidence.simulated_first, high)}")
    if low < broken_below:
        return INSUFFICIENT, (
            f"Insufficient evidence: {at_first}, too near to {broken_below:.0%} to tell broken from undertrained; "
            f"train longer, or evaluate more prompts."
        )
    return _by_speed(evidence, (low, high), at_first)


def _where_to_look(simulated: float | None, served_at_most: float) -> str:
    if simulated is None:
        return "check the layer ids, the vocabulary map and the norms before training longer."
    if simulated > AGREES_WITHIN * served_at_most:
        return (
            f"training reached {simulated:.1%} on held-out samples (simulated), so what is served is not what was trained: "
            f"check the layer ids, the vocabulary map and the norms."
        )
    return (
        f"training reached no more ({simulated:.1%} on held-out samples, simulated), so serving does what was trained: "
        f"train longer, and where that does not help, check the hidden states and the layer ids."
    )


def _by_speed(evidence: Evidence, first: Interval, at_first: str) -> tuple[str, str]:
    served = evidence.acceptance
    weak = first[1] < UNDERTRAINED_BELOW
    short = f"{at_first}; a pilot of 5,000 samples reaches {UNDERTRAINED_BELOW:.0%}"
    points = evidence.curve
    if not points:
        if weak:
            return (
                UNDERTRAINED,
                f"Undertrained: {short}. The speed without a draft is unknown; measure it to learn what it is worth.",
            )
        return INSUFFICIENT, f"Insufficient evidence: {at_first}, but the speed without a draft is unknown; measure it."
    for point in points:
        reached = _served(point, served).accept_len
        if (point.speedup or 0.0) > reached * POSSIBLE_SPEEDUP:
            return INSUFFICIENT, (
                f"Insufficient evidence: {_speeds(point)}, more than an acceptance length of {reached:.2f} can give; "
                f"something else used the machine while one of the two was measured. Evaluate again when it is idle."
            )
        if (point.speedup or 0.0) >= USEFUL_SPEEDUP and point.plain.other_cpu - point.draft.other_cpu > BUSY_ABOVE:
            return INSUFFICIENT, (
                f"Insufficient evidence: {_speeds(point)}, but other work took {point.plain.other_cpu:.0%} of the CPU beside the "
                f"one without a draft and {point.draft.other_cpu:.0%} beside the other. Evaluate again when the machine is idle."
            )
    useful = [point for point in points if point.concurrency in evidence.useful_at]
    told = useful[-1] if useful else max(points, key=lambda point: point.speedup or 0.0)
    at_told, needed = _served(told, served), told.break_even_len or 0.0
    between = between_label(at_told.accept_len_interval, at_told.independent)
    length = f"an acceptance length of {needed:.2f} would break even and the draft reaches {at_told.accept_len:.2f} ({between})"
    beside = _curve(points) + _ngram(points)
    if useful:
        more = f" Longer training should gain more: {short}." if weak else ""
        return USEFUL, f"{_where(evidence)}: {_speeds(told)}; {length}, on {at_told.drafts} drafts.{beside}{more}"
    at_most = max(_interval(point)[1] for point in points)
    if at_most < (1 if weak else USEFUL_SPEEDUP):
        also = f" It is also undertrained: {short}." if weak else ""
        beyond = len(served.acc_pos) + 1
        never = f" No draft of {beyond - 1} tokens can reach that." if needed > beyond else ""
        return NOT_USEFUL, (
            f"Not useful on this machine: {_speeds(told)}; {length}, on {at_told.drafts} drafts.{never}{beside}{also}"
        )
    if not weak:
        return INSUFFICIENT, (
            f"Insufficient evidence: {_speeds(told)}, too near to what counts as a gain ({USEFUL_SPEEDUP}×, and clear of 1); "
            f"{at_first}. Evaluate more prompts.{beside}"
        )
    gain = (
        f"less than the {USEFUL_SPEEDUP}× that counts as a gain" if at_most < USEFUL_SPEEDUP else "neither a clear gain nor loss"
    )
    return UNDERTRAINED, f"Undertrained: {short}; {_speeds(told)}, {gain}.{beside}"


def _interval(point: Point) -> Interval:
    """What the speed-up at a concurrency may be: its interval, or itself where that is not known."""
    alone = point.speedup or 0.0
    return point.speedup_interval or (alone, alone)


def _served(point: Point, otherwise: Acceptance) -> Acceptance:
    return point.draft.acceptance or otherwise


def _speeds(point: Point) -> str:
    return (
        f"{point.draft.tok_s:.1f} tokens/s with the draft against {point.plain.tok_s:.1f} without at concurrency "
        f"{point.concurrency} ({gain_label(point.speedup or 0.0, point.speedup_interval)})"
    )


def _where(evidence: Evidence) -> str:
    if evidence.useful_up_to is None:
        return f"Useful at concurrency {', '.join(str(level) for level in evidence.useful_at)} and not at every lower one"
    highest = evidence.curve[-1].concurrency == evidence.useful_up_to
    return f"Useful up to concurrency {evidence.useful_up_to}{', the highest measured' if highest else ''}"


def _curve(points: list[Point]) -> str:
    told = ", ".join(f"{point.speedup or 0.0:.2f}×{_spread(point)} at {point.concurrency}" for point in points)
    return f" By requests in flight: {told}." if len(points) > 1 else ""


def _spread(point: Point) -> str:
    found = point.speedup_interval
    return f" ({found[0]:.2f} to {found[1]:.2f})" if found else ""


def _ngram(points: list[Point]) -> str:
    with_ngram = [point for point in points if point.speedup_ngram is not None]
    if not with_ngram:
        return ""
    best = max(with_ngram, key=lambda point: point.speedup_ngram or 0.0)
    return f" N-gram speculation, which needs no training, reaches {best.speedup_ngram:.2f}× at {best.concurrency}."


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
