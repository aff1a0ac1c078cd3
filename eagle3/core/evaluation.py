"""What the stage evaluate has measured, put together: speeds over the number of requests in flight, acceptance by kind of
prompt and by temperature. Pure; the same lines for a terminal, the notes and the console.

Speed-up is a curve, never one number: a draft gains while the machine waits for memory, and costs once it computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.core.acceptance import Acceptance, together


@dataclass(frozen=True)
class Speed:
    """Tokens per second of all requests together, at one number of requests in flight, and how they came about."""

    tok_s: float
    acceptance: Acceptance | None = None
    other_cpu: float = 0.0


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
    def speedup_ngram(self) -> float | None:
        """Speed with n-gram speculation ÷ speed without a draft."""
        return self.ngram.tok_s / self.plain.tok_s if self.ngram and self.plain.tok_s > 0 else None

    @property
    def break_even_len(self) -> float | None:
        """The acceptance length at which the draft pays for itself here, as ``break_even`` has it."""
        served = self.draft.acceptance
        return break_even(served.accept_len, self.plain.tok_s, self.draft.tok_s) if served and served.drafts else None

    def to_json(self) -> dict[str, Any]:
        """A row of ``curve`` in result.json."""
        return {
            "concurrency": self.concurrency,
            "tok_s_no_draft": round(self.plain.tok_s, 3),
            "tok_s": round(self.draft.tok_s, 3),
            "speedup": _rounded(self.speedup),
            "break_even_len": _rounded(self.break_even_len),
            **_counts(self.draft.acceptance),
            "other_cpu": round(max(self.plain.other_cpu, self.draft.other_cpu), 3),
            **({"ngram": self._ngram_json()} if self.ngram else {}),
        }

    def _ngram_json(self) -> dict[str, Any]:
        assert self.ngram is not None
        return {
            "tok_s": round(self.ngram.tok_s, 3),
            "speedup": _rounded(self.speedup_ngram),
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
    names = ("accept_len", "accept_len_interval", "acc_pos", "acc_pos_intervals", "drafts", "accepted", "accepted_per_pos")
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
    gain = f" ({point['speedup']:.2f}×)" if point.get("speedup") else ""
    ngram = point.get("ngram") or {}
    beside = f", {_number(ngram.get('tok_s'))} with n-grams" if ngram else ""
    return f"{point.get('concurrency', '?')} in flight: {with_draft}{gain}{beside}"


def _length(figures: Mapping[str, Any]) -> str:
    low, high = (figures.get("accept_len_interval") or [None, None])[:2]
    between = f" ({low:.2f} to {high:.2f})" if isinstance(low, (int, float)) and isinstance(high, (int, float)) else ""
    return f"length {_number(figures.get('accept_len'), 2)}{between} on {figures.get('drafts', 0)} drafts"


def _number(value: Any, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else "–"


def _counts(acceptance: Acceptance | None) -> dict[str, Any]:
    told = acceptance.figures() if acceptance else {}
    return {name: told[name] for name in ("accept_len", "accept_len_interval", "acc_pos", "drafts", "accepted") if name in told}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
