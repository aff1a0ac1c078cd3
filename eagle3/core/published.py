"""Drafts that others have published for a target, and how a run's draft stands beside them at equal tokens.

Theirs are *reported*: their prompts, their server, their number of proposed tokens. What a training has seen is compared by
tokens: ours are counted, theirs are their samples times our tokens a sample, and so *derived*. The curve of a run is its
held-out one, which is simulated; its served length is one point, at its end. The two are kept apart.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Curve = Sequence[tuple[int, float]]
"""Tokens that a training had seen → simulated acceptance length of its draft, ascending."""


@dataclass(frozen=True)
class Published:
    """A draft of others. ``lengths``: prompts → acceptance length; ``samples_seen``: over all epochs, 0 where it is not said."""

    name: str
    source: str
    lengths: Mapping[str, float]
    samples_seen: int


def drafts_for(target: str) -> list[Published]:
    """The published drafts of a target by its preset's name; none where none are known."""
    file = files("eagle3") / "presets" / "published" / f"{target}.toml"
    if not file.is_file():
        return []
    return [Published(**draft) for draft in tomllib.loads(file.read_text())["drafts"]]


def beside(theirs: Sequence[Published], served: Mapping[str, Any], curve: Curve, sample_tokens: float) -> dict[str, Any]:
    """For result.json: our curve and our served length, and each of theirs with ours at equal tokens. ``sample_tokens``: the
    tokens of one of our samples on average. Empty where nothing is published."""
    if not theirs:
        return {}
    seen = curve[-1][0] if curve else 0
    ours = {"tokens_seen": seen, "accept_len": served.get("accept_len"), "drafts": served.get("drafts"), "source": "served"}
    return {
        "ours": ours,
        "ours_simulated": [[tokens, round(length, 4)] for tokens, length in curve],
        "theirs": [_row(draft, seen, curve, sample_tokens) for draft in theirs],
    }


def tokens_seen(scored: Sequence[int], tokens_of: Mapping[int, int], capacity: int) -> list[int]:
    """The tokens that a training had seen after each step of ``scored`` (ascending), without padding. ``tokens_of``: step → its
    tokens. A step without any (of the parent of a fork) is taken for an average one; where none has, of a run before they were
    written, for a full one of ``capacity``."""
    average = sum(tokens_of.values()) / len(tokens_of) if tokens_of else capacity
    found = []
    for last in scored:
        known = [tokens for step, tokens in tokens_of.items() if step <= last]
        found.append(round(sum(known) + average * (last - len(known))))
    return found


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What ``beside`` found, a sentence for each published draft."""
    served = found.get("ours", {}).get("accept_len")
    told = []
    for row in found.get("theirs", []):
        lengths = ", ".join(f"{length:.2f} ({prompts})" for prompts, length in row["lengths"].items())
        ours = f"this one {served:.2f} served" if isinstance(served, (int, float)) else "this one was not served"
        told.append(f"{row['name']} reports {lengths}; {ours}, {row['text']}.")
    return told


def _row(draft: Published, seen: int, curve: Curve, sample_tokens: float) -> dict[str, Any]:
    tokens = round(draft.samples_seen * sample_tokens)
    at_equal = next(((at, length) for at, length in reversed(curve) if at <= tokens), None) if tokens and seen >= tokens else None
    if not tokens:
        text = f"after {seen:,} tokens; how many theirs has seen is not said"
    elif at_equal is None:
        text = f"after {seen:,} tokens, {seen / tokens:.2%} of about {tokens:,} that theirs has seen (derived from its samples)"
    else:
        text = f"simulated {at_equal[1]:.2f} after {at_equal[0]:,} tokens, about as many as theirs (derived from its samples)"
    return {
        "name": draft.name,
        "source": f"reported: {draft.source}",
        "lengths": dict(draft.lengths),
        "tokens_seen": tokens or None,
        "tokens_source": "derived" if tokens else "unknown",
        "ours_simulated_at_equal_tokens": at_equal[1] if at_equal else None,
        "text": text,
    }
