"""What every part of the spec is made of: a frozen section, and fields that say their unit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(gt=0)]
"""Seconds, more than none."""


class Section(BaseModel):
    """A part of the spec: unknown keys are refused, so that a typing error never becomes a default."""

    # validate_default: else a float field's default 30 is an int until it is read back, and the hash differs.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True, allow_inf_nan=False)


def field(default: Any, description: str, unit: str = "", **limits: Any) -> Any:
    """A field with its default, what it is for, and the unit of its number; ``docs/spec.md`` is made from these."""
    return Field(default, description=description, json_schema_extra={"unit": unit}, **limits)


def required(description: str, unit: str = "", **limits: Any) -> Any:
    """A field that a preset must give."""
    return Field(description=description, json_schema_extra={"unit": unit}, **limits)
