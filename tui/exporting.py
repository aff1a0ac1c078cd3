"""Records as tables for other programs: CSV with one column a field, and JSON as it came; and the files of an export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

Tables = Callable[[], Mapping[str, str]]
"""Makes the texts by suffix of their files; called in a thread, so what it works on is a copy."""


def written_to(path: Path, picture: str, tables: Tables = dict) -> list[Path]:
    """Write the picture to ``path`` and the tables beside it; the files. Raises OSError, also where this folder is gone."""
    path = Path.cwd() / path
    found = {path: picture} | {path.with_suffix(f".{suffix}"): text for suffix, text in tables().items()}
    for file, text in found.items():
        file.write_text(text, encoding="utf-8", errors="replace")
    return list(found)


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
