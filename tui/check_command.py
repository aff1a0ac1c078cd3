"""``eagle3-tui check`` and the check before ``eagle3-tui launch``: one report, in words, Markdown or JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3.core import presets
from eagle3.core.readiness.judge import judge
from eagle3.core.readiness.report import Check, Report, concluded
from eagle3.core.readiness.statuses import GROUPS, WORST_FIRST, Status
from eagle3.core.readiness.wants import wants
from eagle3.core.readiness.words import CHECK_WORDS, lines, markdown
from eagle3.core.spec import RunSpec
from remote.errors import ContainerError, NoPython
from tui import plan
from tui.formats import bytes_label, duration_label, one_line
from tui.machine_words import disk_warning, host_words
from tui.readiness import sections_of

if TYPE_CHECKING:
    from tui.oneshot import Talk


@dataclass(frozen=True)
class Judged:
    """What a host is judged for; empty texts leave the choice to the presets and to what the host has."""

    size: str
    target: str
    machine: str
    overrides: tuple[str, ...] = ()

    def spec(self, workspace: str, gpus: Sequence[str]) -> RunSpec:
        """The spec for a host with GPUs of these names, or without any. Raises SpecError."""
        choices = plan.for_gpus(plan.first_choices(workspace), gpus)
        pairs = dict(presets.parse_override(text) for text in self.overrides)
        pairs.setdefault("workspace", workspace)
        return presets.resolve(self.size, self.target or choices.target, self.machine or choices.machine, pairs)


def gpu_names(facts: Mapping[str, Any]) -> list[str]:
    """The names of the host's GPUs, one each."""
    gpu = facts.get("gpu")
    if not isinstance(gpu, Mapping) or gpu.get("status") != "ok":
        return []
    return [str(card.get("name") or "") for card in gpu.get("gpus") or [] if isinstance(card, Mapping)]


async def gathered(talk: Talk, judged: Judged) -> tuple[RunSpec, dict[str, Any]]:
    """The spec to judge for and the light facts: one round trip, and one more where the host turns out to have GPUs."""
    spec = judged.spec(talk.place.workspace, ())
    facts = await talk.container.facts(wants(spec, spec.workspace))
    if not judged.machine and (names := gpu_names(facts)):
        better = judged.spec(talk.place.workspace, names)
        if better.machine != spec.machine:
            return better, await talk.container.facts(wants(better, better.workspace))
    return spec, facts


def report_of(talk: Talk, spec: RunSpec, facts: Mapping[str, Any], *, deep: bool) -> Report:
    """The verdict on the facts, with the hash of the spec that it was made for."""
    found = judge(
        facts, spec, host=talk.place.name, deep=deep, local_now=facts.get("local_now"), round_trip_s=facts.get("round_trip_s")
    )  # fmt: skip
    return found.model_copy(update={"about": {**found.about, "spec": spec.hash}})


async def check(talk: Talk, judged: Judged, deep: bool, as_markdown: bool) -> int:
    """The report; with ``deep`` after the heavy probes, whose progress goes to stderr. 1 where the host is not ready."""
    spec, facts = await gathered(talk, judged)
    if deep:
        await _deep(talk, spec, facts)
    report = report_of(talk, spec, facts, deep=deep)
    talk.say(markdown(report).rstrip() if as_markdown else "\n".join(lines(report)), report.model_dump(mode="json"))
    return 1 if report.verdict == "not ready" else 0


async def _deep(talk: Talk, spec: RunSpec, facts: dict[str, Any]) -> None:
    """Add the deep facts as they come; each section is told when it begins and judged when it has answered."""
    begun = time.monotonic()
    async for line in talk.container.deep_check(wants(spec, spec.workspace), spec):
        if line.section and line.facts is not None:
            facts[line.section] = line.facts
            talk.aside(section_line(talk, spec, line.section, line.facts, time.monotonic() - begun))
        elif line.section:
            limit = line.more.get("limit_s")
            most = f" (at most {duration_label(limit)})" if isinstance(limit, (int, float)) else ""
            talk.aside(f"◌ {one_line(line.section, 80)}…{most}")
        elif line.text:
            talk.aside(f"▲ {one_line(line.text)}")


def without_python(host: str, error: NoPython, now: float) -> Report:
    """The report of a host that has no Python for the helper: what a shell sees of it, and the next step."""
    seen = error.probe
    evidence = f"{error.text} Found: {', '.join(error.found) or 'none'}."
    why = "Without it there is no helper and no run."
    checks = [
        Check(id="host.seen", group="host", status="ok", title="Host", evidence=host_words(seen.host) or "answers"),
        Check(
            id="python.helper", group="python", status="fail", title="Python", evidence=one_line(evidence), why=why,
            remedy=one_line(error.remedy),
        ),
    ]  # fmt: skip
    for disk in seen.disks:
        words = disk_warning(disk)
        free = f"{bytes_label(disk.free_bytes)} free of {bytes_label(disk.total_bytes)}" + (f"; {words}" if words else "")
        where = one_line(disk.mount or disk.path, 200)
        status: Status = "warn" if words else "ok"
        checks.append(Check(id=f"disk.seen:{where}", group="disk", status=status, title=f"Disk {where}", evidence=free))
    checks.sort(key=lambda check: GROUPS.index(check.group))
    return concluded(checks, host=host, as_of=now, deep=False, about={})


def section_line(talk: Talk, spec: RunSpec, section: str, value: Mapping[str, Any], elapsed_s: float) -> str:
    """ "✗ deep.imports.worker  2.1 s": the worst that the section's own checks say, and the first that says it."""
    found = report_of(talk, spec, {"now": 0.0, section: value}, deep=False)
    own = [check for check in found.checks if check.deep and section in sections_of([check])]
    worst = min(own, key=lambda check: WORST_FIRST.index(check.status), default=None)
    took = value.get("took_s")
    words = f"{one_line(section, 80)}  {f'{took:.1f} s' if isinstance(took, (int, float)) else ''}".rstrip()
    if worst is None:
        return f"· {words}"
    evidence = f"  {one_line(worst.evidence)}" if worst.status != "ok" else ""
    return f"{CHECK_WORDS[worst.status][0]} {words}{evidence}  ({duration_label(elapsed_s)} in all)"


def refuse_red(talk: Talk, spec: RunSpec, report: Report, *, anyway: bool) -> None:
    """Say the verdict before a launch. Raises ContainerError(not_ready), naming what fails, unless ``anyway``."""
    if report.verdict != "not ready":
        talk.note(f"{talk.place.name}: {report.verdict}: {one_line(report.verdict_text)}")
        return
    failing = [c for c in report.checks if c.status == "fail"]
    named = "; ".join(f"{one_line(c.id, 80)}: {one_line(c.evidence or c.title, 200)}" for c in failing)
    text = f"{talk.place.name} is not ready for the {spec.size}: {named or one_line(report.verdict_text)}."
    if not anyway:
        remedy = "`eagle3-tui check` says what to do; --anyway launches nevertheless."
        raise ContainerError("not_ready", text, remedy)
    talk.note(f"{text} Launching anyway.")
