"""What is done about a guard that tripped: told as an event, then as the spec says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from eagle3.core.guards import Finding
from eagle3.runner import control
from eagle3.runner.events import guard_record
from eagle3.stages.context import StageContext, StageError


class Tripped(StageError):
    """A guard ends the work at a place that cannot tell of it: whoever called it does, by ``told``."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@contextmanager
def told(ctx: StageContext) -> Iterator[None]:
    """Around work that may raise Tripped: the guard is told as every other, then the error goes on."""
    try:
        yield
    except Tripped as error:
        act(ctx, [error.finding])
        raise


def act(ctx: StageContext, findings: Iterable[Finding], save: Callable[[], None] = lambda: None) -> bool:
    """Tell each finding, and pause or stop where one asks for it; true where the run was paused. ``save`` puts on disk what
    would be lost. Raises StageError for a stop, after all were told."""
    pausing: list[str] = []
    told: dict[str, str] = {}
    for finding in findings:
        ctx.journal.event(
            f"guard-{finding.kind}",
            finding.text,
            level="error" if finding.response == "stop" else "warn",
            guard=_record(finding),
        )
        told.setdefault(finding.response, finding.text)
        if finding.response == "pause":
            pausing.append(finding.kind)
    if "stop" in told:
        save()
        raise StageError(told["stop"])
    if pausing:
        save()
    for guard in pausing:
        control.hold(ctx.run_dir, ctx.journal.attempt, guard)
    return bool(pausing)


def _record(finding: Finding) -> dict[str, Any]:
    return guard_record(finding.kind, finding.value, finding.threshold, finding.counts, finding.response, finding.action)
