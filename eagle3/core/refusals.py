"""What is wrong with a spec (or another of our models), in one plain sentence a field: what it takes, and what was given.

Pure. The sentence is made from the field itself, its type, bounds and unit, so that every kind of error is told alike: at
the command line, under a field of a form, in a run's failure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from eagle3.core.harmless import one_line

GIVEN_COLUMNS = 60
"""Of a value that was given, so many characters are told."""
OWN_COLUMNS = 300
"""Of our own words, which may quote a value of any length and lines."""
MANY = 2
"""More words than these to choose from are a list."""
PLAIN = {str: ("text", "texts"), bool: ("true or false", "truth values"), int: ("a whole number", "whole numbers"),
         float: ("a number", "numbers")}  # fmt: skip
"""One of a kind, and several."""

LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length")

Loc = Sequence[int | str]


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing wrong in one sentence that names the field, and how many more there are."""
    first, *rest = error.errors()
    where = ".".join(str(part) for part in first["loc"]) or "spec"
    more = f"; {len(rest)} more field{'s' if len(rest) > 1 else ''} wrong" if rest else ""
    return f"{where}: {_what(first, model)}{more}."


def wrong_fields(error: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """What is wrong, by field: the dotted name without places in a list, "" for the spec as a whole."""
    found: dict[str, str] = {}
    for entry in error.errors():
        names = [part for part in entry["loc"] if isinstance(part, str)]
        found.setdefault(".".join(names), f"{_what(entry, model)}.")
    return found


def _what(entry: Any, model: type[BaseModel]) -> str:
    """ "a whole number of 1 or more (steps), not 'abc'"; without the field's name and the full stop."""
    kind, loc = entry["type"], tuple(entry["loc"])
    if kind in {"value_error", "assertion_error"}:  # our own words, which name the value
        return one_line(str(entry["msg"]).partition(", ")[2], OWN_COLUMNS).rstrip(".")
    if kind == "extra_forbidden":
        return f"there is no such field{_nearest(loc, model)}"
    takes = _takes_at(loc, model)
    if kind == "missing":
        return f"it is missing; give {takes or 'a value'}"
    return f"{takes or 'another value'}, not {_given(entry['input'])}"


def _given(value: Any) -> str:
    told = "a section" if isinstance(value, BaseModel) else repr(value)
    return told if len(told) <= GIVEN_COLUMNS else f"{told[: GIVEN_COLUMNS - 1]}…"


def _nearest(loc: Loc, model: type[BaseModel]) -> str:
    *parents, last = loc
    section = _part(parents, model)
    known = list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []
    near = difflib.get_close_matches(str(last), known, n=1)
    return f"; the nearest is {'.'.join(str(part) for part in (*parents, near[0]))}" if near else ""


def _part(loc: Loc, model: type[BaseModel]) -> Any:
    """The type at a place of the model; None where there is no such place."""
    return (found := _at(loc, model)) and found[0]


def _at(loc: Loc, model: type[BaseModel]) -> tuple[Any, list[Any], str] | None:
    """The type, the bounds and the unit of what stands at a place; None where there is no such place."""
    kind: Any = model
    bounds: list[Any] = []
    unit = ""
    for part in loc:
        kind, bounds = _bare(kind, bounds)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            info = kind.model_fields.get(str(part))
            if info is None:
                return None
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            kind, bounds, unit = info.annotation, list(info.metadata), str(extra.get("unit", ""))
        elif get_origin(kind) is list:
            kind, bounds = get_args(kind)[0], []
        elif get_origin(kind) is dict:
            kind, bounds, unit = get_args(kind)[1], [], ""
        # Any other part (pydantic names the branch of a union, or a key) stays at the same place.
    return kind, bounds, unit


def _bare(kind: Any, bounds: Iterable[Any]) -> tuple[Any, list[Any]]:
    """A type without "or nothing" and without what is annotated to it, and its bounds."""
    found = list(bounds)
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            found += [bound for part in more for bound in (part.metadata if isinstance(part, FieldInfo) else [part])]
        elif get_origin(kind) in (Union, UnionType) and type(None) in get_args(kind) and len(get_args(kind)) == 2:
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        else:
            return kind, found


def _takes_at(loc: Loc, model: type[BaseModel]) -> str:
    """What stands at a place, in words with its unit; "" where that is not known."""
    found = _at(loc, model)
    if found is None:
        return ""
    kind, bounds, unit = found
    words = _takes(kind, bounds)
    return f"{words} ({unit})" if words and unit else words


def _takes(kind: Any, bounds: Iterable[Any]) -> str:
    """One of a type in words: "a whole number of 1 or more", "'adamw' or 'muon'", "a list of exactly 3 whole numbers"."""
    kind, known = _bare(kind, bounds)
    limits = _limits(known)
    if get_origin(kind) is Literal:
        choices = [repr(choice) for choice in get_args(kind)]
        return f"one of {', '.join(choices)}" if len(choices) > MANY else " or ".join(choices)
    if get_origin(kind) is list:
        return f"a list of {_counted(limits)}{_several(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"a table of {_several(get_args(kind)[1])} by name"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a section with fields of its own"
    words = PLAIN.get(kind, ("", ""))[0]
    if kind is str and _counted(limits):
        return f"text of {_counted(limits)}characters"
    return words + (_bounded(limits) if words else "")


def _several(kind: Any) -> str:
    kind, known = _bare(kind, [])
    limits = _limits(known)
    if get_origin(kind) is Literal:
        return f"words, each {_takes(kind, known)}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "tables"
    return PLAIN.get(kind, ("", "values"))[1] + _bounded(limits)


def _limits(bounds: Iterable[Any]) -> dict[str, Any]:
    return {name: value for part in bounds for name in LIMITS if (value := getattr(part, name, None)) is not None}


def _bounded(limits: dict[str, Any]) -> str:
    """The bounds of a number: " of 1 or more", " of 0 to 2", " above 0 and at most 1"."""
    low, above, high, below = (limits.get(name) for name in ("ge", "gt", "le", "lt"))
    if low is not None and high is not None:
        return f" of {low:,} to {high:,}"
    words = [f"of {low:,} or more"] if low is not None else [f"above {above:,}"] if above is not None else []
    words += [f"of at most {high:,}"] if high is not None else [f"below {below:,}"] if below is not None else []
    return f" {' and '.join(words)}" if words else ""


def _counted(limits: dict[str, Any]) -> str:
    """How many there must be, with a blank behind it: "exactly 3 ", "at least 1 "."""
    least, most = limits.get("min_length"), limits.get("max_length")
    if least is None and most is None:
        return ""
    if least == most:
        return f"exactly {least} "
    return (
        f"{least} to {most} " if least is not None and most is not None else f"at least {least} " if least else f"at most {most} "
    )
