"""What the stage evaluate has measured, put together: speeds over the number of requests in flight, acceptance by kind of
prompt and by temperature. Pure; the same lines for a terminal, the notes and the console.

Speed-up is a curve, never one number: a draft gains while the machine waits for memory, and costs once it computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.core.acceptance import Acceptance, together
from eagle3.core.intervals import Interval, Timed, gain_spread


@dataclass(frozen=True)
class Speed:
    """Tokens per second of all requests together, at one number of requests in flight, and how they came about. ``each``:
    tokens and seconds of each answer, in the order of the prompts; empty where they are not known."""

    tok_s: float
    acceptance: Acceptance | None = None
    other_cpu: float = 0.0
    each: tuple[Timed, ...] = ()

    def gain_over(self, plain: Speed) -> Interval | None:
        """95 % interval of this speed ÷ ``plain``, by the spread between the prompts (``intervals.gain_spread``): each load is
        one pass, so a machine that was slower as a whole during one of them is not seen in it. None where it is not known."""
        spread = gain_spread(self.each, plain.each)
        if spread is None or self.tok_s <= 0 or plain.tok_s <= 0:
            return None
        return (self.tok_s / plain.tok_s / spread, self.tok_s / plain.tok_s * spread)


@dataclass(frozen=True)
class Point:
    """One number of requests in flight: without a draft, with it, and with n-gram speculation where that was measured."""

    concurrency: int
    plain: Speed
    draft: Speed
    ngram: Speed | None = None

    @property
    def speedup(self) -> float | None:
        """Speed with the draft ÷ speed without it."""
        return self.draft.tok_s / self.plain.tok_s if self.plain.tok_s > 0 and self.draft.tok_s > 0 else None

    @property
    def speedup_interval(self) -> Interval | None:
        """95 % interval of ``speedup``, as ``Speed.gain_over`` has it."""
        return self.draft.gain_over(self.plain)

    @property
    def speedup_ngram(self) -> float | None:
        """Speed with n-gram speculation ÷ speed without a draft."""
        return self.ngram.tok_s / self.plain.tok_s if self.ngram and self.plain.tok_s > 0 else None

    @property
    def break_even_len(self) -> float | None:
        """The acceptance length at which the draft pays for itself here, as ``break_even`` has it."""
        served = self.draft.acceptance
        return break_even(served.accept_len, self.plain.tok_s, self.draft.tok_s) if served and served.drafts else None

    @property
    def break_even_interval(self) -> Interval | None:
        """95 % interval of ``break_even_len``, by the spread of the speeds between the prompts alone."""
        length, gain, interval = self.break_even_len, self.speedup, self.speedup_interval
        return (length * gain / interval[1], length * gain / interval[0]) if length and gain and interval else None

    def to_json(self) -> dict[str, Any]:
        """A row of ``curve`` in result.json."""
        return {
            "concurrency": self.concurrency,
            "tok_s_no_draft": round(self.plain.tok_s, 3),
            "tok_s": round(self.draft.tok_s, 3),
            "speedup": _rounded(self.speedup),
            "speedup_interval": rounded(self.speedup_interval),
            "break_even_len": _rounded(self.break_even_len),
            "break_even_interval": rounded(self.break_even_interval),
            **_counts(self.draft.acceptance),
            "other_cpu": round(max(self.plain.other_cpu, self.draft.other_cpu), 3),
            **({"ngram": self._ngram_json()} if self.ngram else {}),
        }

    def _ngram_json(self) -> dict[str, Any]:
        assert self.ngram is not None
        return {
            "tok_s": round(self.ngram.tok_s, 3),
            "speedup": _rounded(self.speedup_ngram),
            "speedup_interval": rounded(self.ngram.gain_over(self.plain)),
            **_counts(self.ngram.acceptance),
            "other_cpu": round(self.ngram.other_cpu, 3),
        }


def break_even(accept_len: float, tok_s_plain: float, tok_s_draft: float) -> float | None:
    """The acceptance length at which speculation is as fast as none: ``accept_len × tok_s_plain ÷ tok_s_draft``.

    A step with a draft takes the same time whatever is accepted, so tokens per second are proportional to the length
    (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 3.3: the improvement is the
    expected tokens of a step over its cost in steps of the target). None where a speed is not known.
    """
    return accept_len / (tok_s_draft / tok_s_plain) if tok_s_plain > 0 and tok_s_draft > 0 else None


def by_kind(kinds: Sequence[str], of_each: Sequence[Acceptance | None]) -> dict[str, dict[str, Any]]:
    """Acceptance by kind of prompt, with counts and intervals; ``kinds`` and ``of_each`` in the order of the prompts. Empty
    where an answer's own acceptance is not known: a part would not be the whole."""
    if not of_each or any(one is None for one in of_each):
        return {}
    parts: dict[str, list[Acceptance]] = {}
    for kind, one in zip(kinds, of_each, strict=True):
        assert one is not None
        parts.setdefault(kind, []).append(one)
    return {kind: kind_figures(together(found), len(found)) for kind, found in sorted(parts.items())}


def kind_figures(acceptance: Acceptance, prompts: int) -> dict[str, Any]:
    """The figures of the prompts of one kind."""
    told = acceptance.figures()
    names = (
        *("accept_len", "accept_len_interval", "acc_pos", "acc_pos_intervals"),
        *("answers", "drafts", "accepted", "accepted_per_pos"),
    )
    return {"prompts": prompts, **{name: told[name] for name in names}}


def lines(curve: Iterable[Mapping[str, Any]], kinds: Mapping[str, Any], sampled: Iterable[Mapping[str, Any]]) -> list[str]:
    """The parts of a result (``curve``, ``kinds``, ``temperatures``) as sentences, the figures with their counts; a part that
    says no more than the result's first figures, or is not there, gives none."""
    points = list(curve)
    told = [_point_line(point) for point in points if len(points) > 1 or point.get("ngram")]
    if len(kinds) > 1:
        told += [f"{kind}: {_length(figures)}, {figures.get('prompts', 0)} prompts" for kind, figures in kinds.items()]
    return told + [f"temperature {entry.get('temperature', 0):g}: {_length(entry)}" for entry in sampled]


def _point_line(point: Mapping[str, Any]) -> str:
    with_draft = f"{_number(point.get('tok_s'))} tokens/s with the draft, {_number(point.get('tok_s_no_draft'))} without"
    gain = f" ({gain_label(point['speedup'], point.get('speedup_interval'))})" if point.get("speedup") else ""
    ngram = point.get("ngram") or {}
    beside = f", {_number(ngram.get('tok_s'))} with n-grams" if ngram else ""
    return f"{point.get('concurrency', '?')} in flight: {with_draft}{gain}{beside}"


def gain_label(speedup: float, interval: Sequence[float] | None) -> str:
    """A speed-up with its interval, where it is known."""
    return f"{speedup:.2f}×, {interval[0]:.2f} to {interval[1]:.2f}" if interval else f"{speedup:.2f}×"


ALONE = "drafts taken for independent"
"""Said of an interval of which each answer's own counts are not known: it is too narrow."""


def between_label(interval: Sequence[float | None] | None, answers: int | None) -> str:
    """An interval of acceptance in words, "1.19 to 1.35", and what it rests on where that is the drafts alone; empty where there
    is none. ``answers``: ``Acceptance.independent``; a result of an older version has none, and took the drafts."""
    low, high = (interval or [None, None])[:2]
    if low is None or high is None:
        return ""
    return f"{low:.2f} to {high:.2f}" + ("" if answers else f", {ALONE}")


def _length(figures: Mapping[str, Any]) -> str:
    between = between_label(figures.get("accept_len_interval"), figures.get("answers"))
    told = f"length {_number(figures.get('accept_len'), 2)}" + (f" ({between})" if between else "")
    return f"{told} on {figures.get('drafts', 0)} drafts"


def _number(value: Any, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else "–"


def _counts(acceptance: Acceptance | None) -> dict[str, Any]:
    told = acceptance.figures() if acceptance else {}
    names = ("accept_len", "accept_len_interval", "acc_pos", "answers", "drafts", "accepted")
    return {name: told[name] for name in names if name in told}


def rounded(interval: Interval | None) -> list[float] | None:
    """An interval as it is written."""
    return None if interval is None else [round(end, 4) for end in interval]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
