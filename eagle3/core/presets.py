"""Presets: small TOML files for sizes, targets and machines, merged to a RunSpec.

Order, later wins: machine < size < size for that kind of machine < the target's ``[run]`` < overrides. A size file holds a
``[base]`` table for every machine, or one table per machine kind (``[cpu]``, ``[gpu]``): "pilot" means other numbers on
two cores than on eight GPUs, and porting a run is changing the machine's name. A target's ``[run]`` table holds what only this
model needs of a run, such as a longer time to load.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ValidationError

from eagle3.core import refusals
from eagle3.core.spec import RunSpec

KINDS = {"size": "sizes", "target": "targets", "machine": "machines"}


class SpecError(ValueError):
    """The spec cannot be used; the message is one sentence that names the field and what to do. ``fields``: what is wrong with
    each field or section, by its dotted name, where that is known."""

    def __init__(self, text: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.fields = dict(fields or {})


def names(kind: str) -> list[str]:
    """The presets of a kind ('size', 'target', 'machine'), sorted."""
    folder = files("eagle3") / "presets" / KINDS[kind]
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load(kind: str, name: str) -> dict[str, Any]:
    """One preset as a dict. Raises SpecError naming the nearest preset when there is none of that name."""
    known = names(kind)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(known)}."
        raise SpecError(f"There is no {kind} called '{name}'; {hint}")
    return tomllib.loads((files("eagle3") / "presets" / KINDS[kind] / f"{name}.toml").read_text())


def resolve(size: str, target: str, machine: str, overrides: Mapping[str, Any] | None = None) -> RunSpec:
    """Merge the three presets and the overrides (dotted keys, such as ``train.max_steps``) to a RunSpec.

    Raises SpecError for an unknown preset, an unknown field or a value out of range.
    """
    machine_table = load("machine", machine)
    machine_kind = str(machine_table.pop("kind"))
    size_table = load("size", size)
    if "base" not in size_table and machine_kind not in size_table:
        raise SpecError(f"The size '{size}' has no numbers for a machine of kind '{machine_kind}'; choose another size.")
    target_table = load("target", target)
    of_the_target = target_table.pop("run", {})
    merged: dict[str, Any] = {"size": size, "machine": machine, "target": {"name": target, **target_table}}
    merged["hardware"] = {"kind": machine_kind}
    for table in (machine_table, size_table.get("base", {}), size_table.get(machine_kind, {}), of_the_target):
        _merge(merged, table)
    for key, value in (overrides or {}).items():
        _set(merged, key, value)
    try:
        return RunSpec.model_validate(merged)
    except ValidationError as error:
        raise _refused(error) from error


def override(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """A spec with some fields (dotted keys) changed. Raises SpecError as ``resolve`` does."""
    table = spec.model_dump()
    for key, value in changes.items():
        _set(table, key, value)
    try:
        return RunSpec.model_validate(table)
    except ValidationError as error:
        raise _refused(error) from error


def flat(spec: RunSpec) -> dict[str, Any]:
    """Every field by its dotted name; free tables (environments) are one field each."""
    found: dict[str, Any] = {}

    def walk(part: BaseModel, prefix: str) -> None:
        for name in type(part).model_fields:
            value = getattr(part, name)
            if isinstance(value, BaseModel):
                walk(value, f"{prefix}{name}.")
            else:
                found[f"{prefix}{name}"] = value

    walk(spec, "")
    return found


def difference(one: RunSpec, other: RunSpec) -> dict[str, tuple[Any, Any]]:
    """The fields in which two specs differ: dotted name → the value in each."""
    left, right = flat(one), flat(other)
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` with the value read as TOML, or as a plain string where it is not TOML."""
    key, sep, raw = text.partition("=")
    if not sep or not key.strip():
        raise SpecError(f"'{text}' is not an override; write field=value, such as train.max_steps=200.")
    try:
        value = tomllib.loads(f"x = {raw}")["x"]
    except tomllib.TOMLDecodeError:
        value = raw
    return key.strip(), value


def _refused(error: ValidationError) -> SpecError:
    return SpecError(refusals.explain(error, RunSpec), refusals.wrong_fields(error, RunSpec))


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _set(into: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        into = into.setdefault(part, {})
        if not isinstance(into, dict):
            raise SpecError(f"{dotted}: '{part}' is a value, not a section.")
    into[last] = value
