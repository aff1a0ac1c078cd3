"""The verdict: is this draft worth serving, here? One word, one sentence, and every threshold beside its figure.

Only served figures decide: vLLM's counters, and the speed with and without the draft at the same concurrency on the
same prompts. The order matters: too little evidence is said before anything is concluded from it, a broken draft
before it is called slow, and a draft that costs time is "not useful on this machine" whatever its quality.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eagle3.core.acceptance import Acceptance
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
"""Speed with ÷ without the draft from which the gain is more than the noise of one measurement."""


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

    @property
    def speedup(self) -> float | None:
        """Speed with the draft ÷ speed without it."""
        return self.tok_s / self.tok_s_no_draft if self.tok_s and self.tok_s_no_draft else None

    @property
    def break_even_len(self) -> float | None:
        """The acceptance length at which the draft would pay for itself: the served length × (seconds a token with
        the draft ÷ seconds a token without it)."""
        return self.acceptance.accept_len / self.speedup if self.speedup and self.acceptance.drafts else None


@dataclass(frozen=True)
class Verdict:
    """``thresholds`` holds the thresholds, and beside them the figures and counts they were held against."""

    verdict: str
    verdict_text: str
    thresholds: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(evidence: Evidence, *, min_drafts: int, broken_below: float) -> Verdict:
    """The verdict. ``min_drafts``: fewer are no evidence; ``broken_below``: position-0 acceptance (0 to 1) under
    which layer ids, vocabulary map or norms are wrong rather than the training short."""
    word, text = _decide(evidence, min_drafts, broken_below)
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
            "other_cpu": _rounded(evidence.other_cpu),
            "busy_above": BUSY_ABOVE,
            "lossless_identical": evidence.lossless.identical if evidence.lossless else None,
            "lossless_of": evidence.lossless.of if evidence.lossless else None,
            "tie_gap": evidence.lossless.tie_gap if evidence.lossless else None,
        },
    )


def _decide(evidence: Evidence, min_drafts: int, broken_below: float) -> tuple[str, str]:
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
    first, (low, high) = served.acc_pos[0], served.acc_pos_intervals[0]
    at_first = f"position 0 accepts {first:.1%} ({low:.1%} to {high:.1%}, {served.drafts} drafts)"
    if high < broken_below:
        return BROKEN, (f"Broken: {at_first}, under {broken_below:.0%}; {_where_to_look(evidence.simulated_first, high)}")
    if low < broken_below:
        return INSUFFICIENT, (
            f"Insufficient evidence: {at_first}, too near to {broken_below:.0%} to tell broken from undertrained; "
            f"train longer, or evaluate more prompts."
        )
    return _by_speed(evidence, first, at_first)


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


def _by_speed(evidence: Evidence, first: float, at_first: str) -> tuple[str, str]:
    served = evidence.acceptance
    weak = first < UNDERTRAINED_BELOW
    short = f"{at_first}; a pilot of 5,000 samples reaches {UNDERTRAINED_BELOW:.0%}"
    speedup, needed = evidence.speedup, evidence.break_even_len
    if speedup is None or needed is None:
        if weak:
            return (
                UNDERTRAINED,
                f"Undertrained: {short}. The speed without a draft is unknown; measure it to learn what it is worth.",
            )
        return INSUFFICIENT, f"Insufficient evidence: {at_first}, but the speed without a draft is unknown; measure it."
    speeds = (
        f"{evidence.tok_s:.1f} tokens/s with the draft against {evidence.tok_s_no_draft:.1f} without at concurrency "
        f"{evidence.concurrency} ({speedup:.2f}×)"
    )
    if speedup > served.accept_len * POSSIBLE_SPEEDUP:
        return INSUFFICIENT, (
            f"Insufficient evidence: {speeds}, more than an acceptance length of {served.accept_len:.2f} can give; "
            f"something else used the machine while one of the two was measured. Evaluate again when it is idle."
        )
    low, high = served.accept_len_interval
    reached = f"{served.accept_len:.2f} ({low:.2f} to {high:.2f})"
    length = f"an acceptance length of {needed:.2f} would break even and the draft reaches {reached}"
    if speedup < 1 or (speedup < USEFUL_SPEEDUP and not weak):
        also = f" It is also undertrained: {short}." if weak else ""
        beyond = len(served.acc_pos) + 1
        never = f" No draft of {beyond - 1} tokens can reach that." if needed > beyond else ""
        return NOT_USEFUL, f"Not useful on this machine: {speeds}; {length}, on {served.drafts} drafts.{never}{also}"
    if speedup < USEFUL_SPEEDUP:
        return UNDERTRAINED, f"Undertrained: {short}; {speeds}, less than the {USEFUL_SPEEDUP}× that counts as a gain."
    more = f" Longer training should gain more: {short}." if weak else ""
    return USEFUL, f"Useful: {speeds}; {length}, on {served.drafts} drafts.{more}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
