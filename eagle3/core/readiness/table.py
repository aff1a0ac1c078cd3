"""The table of all checks for the docs, made from their declarations: ``python -m eagle3.core.readiness.table FILE``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from eagle3.core.readiness import checks
from eagle3.core.readiness.registry import REGISTRY, Declared
from eagle3.core.readiness.statuses import GROUPS

BEGIN, END = "<!-- checks: made by python -m eagle3.core.readiness.table docs/readiness.md -->", "<!-- /checks -->"

__all__ = ["checks", "document", "table"]


def table(declared: Iterable[Declared] | None = None) -> str:
    """One row a check: its id, whether it is deep, what it asks, the failure that it catches, and how a test makes it fail."""
    known = sorted(declared or REGISTRY.declared.values(), key=lambda d: GROUPS.index(d.group))
    rows = [
        f"| `{d.id}` | {'deep' if d.deep else 'light'} | {_cell(d.title)} | {_cell(d.catches)} | {_cell(d.proof)} |"
        for d in known
    ]
    head = ["| id | sweep | asks | the failure that it catches | made to fail in a test |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def document(text: str) -> str:
    """``text`` with what stands between the marks replaced by the table of now. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> int:
    """Rewrite the named documents, or print the table."""
    for name in argv:
        path = Path(name)
        path.write_text(document(path.read_text(encoding="utf-8")), encoding="utf-8")
    if not argv:
        sys.stdout.write(table() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
