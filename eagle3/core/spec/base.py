"""What every part of the spec is made of: a frozen section, and fields that say their unit."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(gt=0)]
"""Seconds, more than none."""


class Section(BaseModel):
    """A part of the spec: unknown keys are refused, so that a typing error never becomes a default."""

    # validate_default: else a float field's default 30 is an int until it is read back, and the hash differs.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1. No ``spec.toml`` of ours holds that, since a spec is written with the number."""
        several = value if isinstance(value, list) else [value]
        if any(isinstance(part, bool) for part in several) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("number_type", "a number is wanted")
        return value


def _is_number(annotation: Any) -> bool:
    """Whether a field takes a number, or a list of them, and no truth value."""
    kinds = _kinds(annotation)
    return bool(kinds & {int, float}) and bool not in kinds


def _kinds(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Literal:
        return set()
    parts = get_args(annotation)
    if not parts:
        return {annotation} if isinstance(annotation, type) else set()
    return set().union(*map(_kinds, parts))


def field(default: Any, description: str, unit: str = "", **limits: Any) -> Any:
    """A field with its default, what it is for, and the unit of its number; ``docs/spec.md`` is made from these."""
    return Field(default, description=description, json_schema_extra={"unit": unit}, **limits)


def required(description: str, unit: str = "", **limits: Any) -> Any:
    """A field that a preset must give."""
    return Field(description=description, json_schema_extra={"unit": unit}, **limits)
