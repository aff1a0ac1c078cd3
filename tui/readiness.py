"""What is known of a container's readiness for one spec: facts, each section with its age, and what they are judged to mean.

Pure: no Textual, no clock of its own, no IO. Times are this machine's Unix seconds; a report's ``as_of`` is the container's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.core.readiness.registry import REGISTRY
from eagle3.core.readiness.report import Check, Report
from eagle3.core.readiness.words import WRONG, groups_of
from eagle3.core.spec import RunSpec

OLD_S = 600.0
"""A report older than this is asked again before a launch: disks fill and servers die within minutes."""
RED_S = 15.0
"""One that is red is asked again sooner: it may have been mended since."""
NOT_FACTS = frozenset({"now", "local_now", "round_trip_s", "took_s"})
"""Keys of facts that are no section: both clocks as of one and the same answer, and how long it took."""


@dataclass(frozen=True)
class Deep:
    """A deep check under way. ``doing`` is the section at work since ``since``; ``limit_s`` is how long it may take, None where
    it is not known; ``done`` counts the sections that have answered."""

    began: float
    doing: str = ""
    since: float = 0.0
    limit_s: float | None = None
    done: int = 0
    stopping: bool = False


Judge = Callable[[Mapping[str, Any], "Readiness"], Report]


@dataclass
class Readiness:
    """``ages`` says for each check when the oldest of its facts was learnt; ``light_at`` when the light facts were.
    ``asking`` names the sections that are being asked now (empty text: all), None where nothing is."""

    spec: RunSpec
    host: str
    taken: tuple[str, ...] = ()
    """The stages that it takes over from another run."""
    facts: dict[str, Any] = field(default_factory=dict)
    facts_at: dict[str, float] = field(default_factory=dict)
    report: Report | None = None
    ages: dict[str, float] = field(default_factory=dict)
    light_at: float | None = None
    asking: str | None = None
    asking_since: float = 0.0
    asked_at: float | None = None
    problem: str = ""
    deep: Deep | None = None
    deep_ended: bool = False
    """Whether a deep check has come to its end: what it left without an answer is unknown from then on."""

    def take(self, facts: Mapping[str, Any], at: float, judge: Judge) -> Report:
        """Add sections learnt ``at``, and judge everything that is known anew. What was not asked again keeps its age."""
        for name, value in facts.items():
            self.facts[name] = value
            if name not in NOT_FACTS:
                self.facts_at[name] = at
        self.problem = ""
        light = [t for name, t in self.facts_at.items() if not name.startswith("deep.")]
        self.light_at = min(light) if light else self.light_at
        return self.judge_again(judge)

    def judge_again(self, judge: Judge) -> Report:
        """Judge what is known anew."""
        self.report = judge(self.facts, self)
        self.ages = {check.id: self._learnt(check) for check in self.report.checks}
        return self.report

    def remember(self, report: Report, ages: Mapping[str, float], at: float) -> None:
        """A report from the catalog, for before the first answer."""
        if self.report is None:
            self.report, self.ages, self.light_at = report, dict(ages), at

    def _learnt(self, check: Check) -> float:
        declared = REGISTRY.declared.get(check.kind)
        known = [self.facts_at[name] for name in (declared.needs if declared else ()) if name in self.facts_at]
        return min(known, default=max(self.facts_at.values(), default=0.0))

    def age(self, now: float) -> float | None:
        """Seconds since the light facts were learnt, None where they never were."""
        return None if self.light_at is None else max(0.0, now - self.light_at)

    def age_of(self, check: Check, now: float) -> float | None:
        at = self.ages.get(check.id)
        return None if at is None else max(0.0, now - at)

    @property
    def red(self) -> bool:
        return self.report is not None and self.report.verdict == "not ready"

    def due(self, now: float) -> bool:
        """Whether it has to be asked again before a launch: never asked, old, or red and not of this moment."""
        age = self.age(now)
        if self.report is None or age is None:
            return True
        return age > (RED_S if self.red else OLD_S)


def sections_of(checks: list[Check]) -> tuple[str, ...]:
    """The sections of facts that have to be asked again to judge these checks anew."""
    found: dict[str, None] = {}
    for check in checks:
        if declared := REGISTRY.declared.get(check.kind):
            found.update(dict.fromkeys(declared.needs))
    return tuple(found)


@dataclass(frozen=True)
class Row:
    """A line of the list: a group with its checks, or one check of it. ``key`` is stable across updates."""

    group: str
    checks: tuple[Check, ...]
    check: Check | None = None
    folded: bool = False

    @property
    def key(self) -> str:
        return f"check {self.check.id}" if self.check else f"group {self.group}"


@dataclass
class Folding:
    """Which groups are open. Those with something to look at are, until somebody says otherwise."""

    chosen: dict[str, bool] = field(default_factory=dict)
    only_wrong: bool = False

    def rows(self, report: Report | None) -> list[Row]:
        """The list as it stands: groups with the worst first, and the checks of those that are open."""
        out: list[Row] = []
        for group, checks in groups_of(report.checks if report else ()):
            wrong = [check for check in checks if check.status in WRONG]
            shown = wrong if self.only_wrong else checks
            if not shown:
                continue
            opened = self.chosen.get(group, bool(wrong))
            out.append(Row(group, tuple(checks), folded=not opened))
            if opened:
                out += [Row(group, tuple(checks), check) for check in shown]
        return out

    def fold(self, group: str, opened: bool) -> None:
        self.chosen[group] = opened
