"""``docs/spec.md``: every field of the RunSpec with its unit, its default and what it is for, made from the model itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eagle3.core.spec import RunSpec

HEAD = """# The fields of a run

Made by `eagle3 spec show --docs > docs/spec.md`; a test keeps it current. A field is given as `--set SECTION.FIELD=VALUE`, or
stands in a `spec.toml`. Presets (`eagle3/presets/`) are merged in this order, later wins: machine, size, size for that kind of
machine, the target's `[run]`, overrides. Defaults below are those of a field that no preset sets.
"""

TABLE = "| field | type | unit | default | what it is for |\n|---|---|---|---|---|\n"


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Each field: dotted name, type, unit, default, description."""
    yield from _of(RunSpec, "")


def markdown() -> str:
    """The whole page."""
    parts, section = [HEAD], None
    for name, kind, unit, default, text in rows():
        here = name.rpartition(".")[0]
        if here != section:
            section = here
            title = f"`[{here}]`" if here else "The run itself"
            parts.append(f"\n## {title}\n{_about(here)}\n{TABLE}")
        parts.append(f"| `{name.rpartition('.')[2]}` | {kind} | {unit or '–'} | {default} | {text} |\n")
    return "".join(parts)


def _of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str, str]]:
    sections = []
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            sections.append((name, info.annotation))
            continue
        if (listed := _listed(info)) is not None:
            sections.append((f"{name}[]", listed))
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        yield (
            f"{prefix}{name}",
            _kind(info),
            str(extra.get("unit", "")),
            _default(info),
            info.description or "",
        )
    for name, part in sections:
        yield from _of(part, f"{prefix}{name}.")


def _listed(info: FieldInfo) -> type[BaseModel] | None:
    """The section that a field is a list of, if it is one."""
    parts = get_args(info.annotation) if get_origin(info.annotation) is list else ()
    return parts[0] if parts and isinstance(parts[0], type) and issubclass(parts[0], BaseModel) else None


def _about(section: str) -> str:
    model: type[BaseModel] = RunSpec
    for name in section.split(".") if section else ():
        info = model.model_fields[name.removesuffix("[]")]
        part: Any = _listed(info) if name.endswith("[]") else info.annotation
        model = part
    return " ".join((model.__doc__ or "").split()) + "\n"


def _kind(info: FieldInfo) -> str:
    limits = [_limit(part) for part in info.metadata]
    return " ".join([_word(info.annotation), *filter(None, limits)])


def _word(annotation: Any) -> str:
    if get_origin(annotation) is list:
        if isinstance(get_args(annotation)[0], type) and issubclass(get_args(annotation)[0], BaseModel):
            return "list of tables, below"
        return f"list of {_word(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "table of text"
    if choices := [arg for arg in get_args(annotation) if isinstance(arg, (str, int))]:
        return " or ".join(json.dumps(choice) for choice in choices)
    if type(None) in get_args(annotation):
        return _word(get_args(annotation)[0])
    if hasattr(annotation, "__metadata__"):
        return _word(get_args(annotation)[0])
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(annotation, str(annotation))


def _limit(part: Any) -> str:
    for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("min_length", "at least"), ("max_length", "at most")):
        if (value := getattr(part, name, None)) is not None:
            return f"{sign} {value:g}"
    return ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "by a preset"
    return "–" if info.default is None else f"`{json.dumps(info.default)}`"
