"""A measured figure, and how figures are shown and written."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

_TARGET = re.compile(r"(<=|>=)\s*([-0-9.]+)")


@dataclass(frozen=True)
class Figure:
    """``value`` of ``n`` measurements; ``spread`` is the smallest and the largest of them. ``target`` is a text such as
    "<= 1.3", or None where the figure only informs."""

    value: float
    unit: str
    target: str | None = None
    n: int = 1
    spread: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float], unit: str, target: str | None = None) -> Figure:
        """The median of ``values``."""
        return cls(statistics.median(values), unit, target, len(values), (min(values), max(values)))

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none. Raises ValueError for a target that cannot be read."""
        if self.target is None:
            return None
        found = _TARGET.fullmatch(self.target)
        if found is None:
            raise ValueError(f"{self.target!r} is no target: write '<= NUMBER' or '>= NUMBER'.")
        bound = float(found[2])
        return self.value <= bound if found[1] == "<=" else self.value >= bound

    def as_dict(self) -> dict[str, Any]:
        """The shape that ``--json`` writes."""
        spread = None if self.spread is None else list(self.spread)
        return {"value": self.value, "unit": self.unit, "target": self.target, "n": self.n, "spread": spread}


Figures = dict[str, Figure]


def table(name: str, figures: Figures) -> Table:
    """The figures of one part, with pass or miss."""
    shown = Table(title=f"benchmarks {name}", title_justify="left")
    for heading in ("figure", "value", "unit", "target", "", "n", "smallest … largest"):
        shown.add_column(heading, justify="right" if heading in ("value", "n") else "left")
    words = {True: "pass", False: "miss", None: ""}
    for title, figure in figures.items():
        spread = "" if figure.spread is None else " … ".join(_number(value) for value in figure.spread)
        shown.add_row(
            title, _number(figure.value), figure.unit, figure.target or "", words[figure.met], str(figure.n), spread
        )  # fmt: skip
    return shown


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
