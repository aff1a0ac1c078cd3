"""Facts and a spec in, a report out: the one place where a status is decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eagle3.core.readiness import checks
from eagle3.core.readiness.registry import REGISTRY, Context, Facts
from eagle3.core.readiness.report import Report
from eagle3.core.readiness.wants import needs as needs_of
from eagle3.core.spec import RunSpec

__all__ = ["checks", "judge"]


def judge(
    facts: Facts,
    spec: RunSpec | None,
    *,
    host: str,
    deep: bool,
    local_now: float | None = None,
    round_trip_s: float | None = None,
    needs: Sequence[Mapping[str, Any]] = (),
    asked: Iterable[str] | None = None,
) -> Report:
    """The report on ``facts``.

    ``deep`` says whether the heavy probes were started: where they were not, their checks are "skipped", and where one
    has not answered, "unknown". ``local_now`` is this machine's clock at the moment when the answer came and
    ``round_trip_s`` what the question took. ``needs`` are what the run will write, as in `wants`; by default those that the
    container was asked about, else those of ``spec``.
    ``asked`` names the sections that were asked for when only some checks are run again: checks of
    other sections are left out. Without it a light section that is missing is unknown.
    """
    disk = facts.get("disk") or {}
    entries = tuple(needs) or tuple(disk.get("needs") or (needs_of(spec, spec.workspace) if spec is not None else ()))
    context = Context(
        spec=spec, local_now=local_now, round_trip_s=round_trip_s, needs=entries, deep=deep,
        asked=None if asked is None else frozenset(asked),
    )  # fmt: skip
    return REGISTRY.report(facts, context, host=host, deep=deep)
