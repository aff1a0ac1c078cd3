"""How a check is declared and how all of them are run.

A check is a pure function of the facts and the spec that yields findings: none where it does not apply, several where it
is asked of each GPU or disk. Its declaration states why it matters and which failure, that somebody really had, it catches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.core.readiness.report import Action, Check, Report, concluded
from eagle3.core.readiness.statuses import GROUPS, Status
from eagle3.core.spec import RunSpec

Facts = Mapping[str, Any]
"""``{"now": seconds, SECTION: {"took_s": seconds, "error": text or missing, …}}``. A section that was not asked is missing;
one that could not be had carries ``error``. Sections: host, gpu, disk, python, model, vllm (light, one round trip) and
deep.imports, deep.kernels, deep.allreduce, deep.model, deep.disk, deep.generate, deep.canary …"""


@dataclass(frozen=True)
class Finding:
    """What a check found. ``which`` tells several findings of one check apart ("cuda:3", "/data")."""

    status: Status
    evidence: str
    remedy: str = ""
    which: str = ""
    title: str = ""
    detail: str = ""
    action: Action | None = None


@dataclass(frozen=True)
class Context:
    """What a check may know besides the facts: the spec of the run to come (None for a look at the machine alone), this
    machine's clock when the answer came, and what the run will write, as `wants` says it. ``deep``: the heavy probes were
    started. ``asked``: the sections that were asked for, None for all."""

    spec: RunSpec | None = None
    local_now: float | None = None
    round_trip_s: float | None = None
    needs: tuple[Mapping[str, Any], ...] = ()
    deep: bool = False
    asked: frozenset[str] | None = None

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"; empty where no run is planned."""
        return self.spec.device if self.spec is not None else ""


ASK_AGAIN = "Ask again; the container may be too busy, or its helper of another version."

Judge = Callable[[Facts, Context], Iterable[Finding]]


@dataclass(frozen=True)
class Declared:
    """A check as it is declared; ``proof`` says how a test makes it fail: "real", "fake: EDGE" or "gpu machine"."""

    id: str
    group: str
    title: str
    why: str
    catches: str
    proof: str
    needs: tuple[str, ...]
    judge: Judge
    deep: bool = False


@dataclass
class Registry:
    """The declared checks, in order of declaration within their groups."""

    declared: dict[str, Declared] = field(default_factory=dict)

    def check(
        self, id: str, *, title: str, why: str, catches: str, proof: str, needs: tuple[str, ...], deep: bool = False
    ) -> Callable[[Judge], Judge]:
        """Declare the decorated function as the check ``id`` ("GROUP.NAME"). ``needs`` are the sections of facts that it
        reads: without one of them it is skipped where it was not asked, unknown where asking failed."""
        group = id.partition(".")[0]
        if group not in GROUPS or id in self.declared:
            raise ValueError(f"{id}: not in a known group, or declared twice")

        def declare(judge: Judge) -> Judge:
            self.declared[id] = Declared(id, group, title, why, catches, proof, needs, judge, deep)
            return judge

        return declare

    def report(self, facts: Facts, context: Context, *, host: str, deep: bool) -> Report:
        """Judge everything that applies. A check that raises is a finding of its own (unknown, naming the error): one
        malformed fact must not hide the others."""
        ordered = sorted(self.declared.values(), key=lambda d: GROUPS.index(d.group))
        found = [check for d in ordered for check in self._judged(d, facts, context)]
        about = {}
        if context.spec is not None:
            about = {"size": context.spec.size, "target": context.spec.target.name, "machine": context.spec.machine}
        return concluded(found, host=host, as_of=float(facts.get("now") or 0.0), deep=deep, about=about)

    def _judged(self, declared: Declared, facts: Facts, context: Context) -> list[Check]:
        missing = [name for name in declared.needs if name not in facts]
        if missing:
            found = _unasked(declared, missing, context)
            return [] if found is None else [_check_of(declared, found, None)]
        took = sum(float(facts[name].get("took_s") or 0.0) for name in declared.needs) or None
        broken = next((str(facts[name]["error"]) for name in declared.needs if facts[name].get("error")), "")
        try:
            findings = [Finding("unknown", broken, ASK_AGAIN)] if broken else list(declared.judge(facts, context))
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            findings = [Finding("unknown", f"its facts cannot be understood: {type(error).__name__}: {error}", ASK_AGAIN)]
        return [_check_of(declared, finding, took) for finding in findings]


def _unasked(declared: Declared, missing: list[str], context: Context) -> Finding | None:
    """What is said where facts are missing: never ok. None: it was not asked for on purpose."""
    if declared.deep and not context.deep:
        return Finding("skipped", "not run", "Run it with --deep.") if context.asked is None else None
    if context.asked is not None and not set(missing) <= context.asked:
        return None
    return Finding("unknown", f"no answer about {', '.join(missing)}", ASK_AGAIN)


def _check_of(declared: Declared, found: Finding, took_s: float | None) -> Check:
    return Check(
        id=declared.id + (f":{found.which}" if found.which else ""), group=declared.group, status=found.status,
        title=found.title or declared.title, evidence=found.evidence, why=declared.why, remedy=found.remedy,
        action=found.action, detail=found.detail, took_s=took_s, deep=declared.deep,
    )  # fmt: skip


REGISTRY = Registry()
check = REGISTRY.check
