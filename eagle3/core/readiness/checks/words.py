"""Small words that several checks share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3.core.wording import bytes_label

__all__ = ["all_of", "bytes_label", "env_python", "first_few", "share"]

GIB = 1 << 30


def first_few(words: Iterable[object], count: int = 3) -> str:
    """``a, b, c and 4 more``."""
    found = [str(word) for word in words]
    shown = ", ".join(found[:count])
    return f"{shown} and {len(found) - count} more" if len(found) > count else shown


def share(part: float, whole: float) -> str:
    """A share in whole per cent; "0 %" of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def env_python(facts: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """The facts of the worker's or the server's environment."""
    found: Mapping[str, Any] = facts["python"][role]
    return found


def all_of(facts: Mapping[str, Any]) -> list[str]:
    """The roles to ask for: one where both are the same interpreter."""
    return ["worker"] if facts["python"].get("same") else ["worker", "server"]
