"""Records as tables for other programs: CSV with one column a field, and JSON as it came. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel


def tables_of(records: Sequence[BaseModel]) -> dict[str, str]:
    """``{"csv": …, "json": …}``. Lists become one column an element ("acc_pos.0"), tables one a key."""
    rows = [record.model_dump(mode="json") for record in records]
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in flat)
    return {"csv": out.getvalue(), "json": json.dumps(rows, indent=1, ensure_ascii=False) + "\n"}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None:
        return {prefix.removesuffix("."): value}
    return {name: inner for key, part in pairs for name, inner in _flat(part, f"{prefix}{key}.").items()}


def _safe(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value[:1] else value
