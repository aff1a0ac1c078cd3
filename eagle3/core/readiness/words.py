"""A readiness report for people: lines for a terminal, Markdown for a ticket. Evidence comes from outside and stays text."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eagle3.core.harmless import clean_lines, one_line
from eagle3.core.readiness.statuses import GROUPS, WORST_FIRST, Status

if TYPE_CHECKING:
    from eagle3.core.readiness.report import Check, Report

CHECK_WORDS: dict[str, tuple[str, str]] = {
    "ok": ("✓", "ok"),
    "warn": ("▲", "warning"),
    "fail": ("✗", "failed"),
    "unknown": ("?", "unknown"),
    "skipped": ("–", "skipped"),
}
"""Status of a check -> symbol and word."""

VERDICT_STATUS: dict[str, Status] = {"ready": "ok", "ready with warnings": "warn", "not ready": "fail"}
"""Verdict -> the status that has its symbol and colour."""

WRONG: frozenset[str] = frozenset({"fail", "unknown", "warn"})
"""The statuses that somebody has to look at."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~])")


def worst_first(checks: Sequence[Check]) -> list[Check]:
    """The checks of one group in the order in which they are read: what is wrong comes first, else as declared."""
    return sorted(checks, key=lambda check: WORST_FIRST.index(check.status))


def groups_of(checks: Sequence[Check]) -> list[tuple[str, list[Check]]]:
    """(group, its checks), the group with the worst check first; equals keep the order in which a person mends them."""
    found = [(name, worst_first([check for check in checks if check.group == name])) for name in GROUPS]
    return sorted(((n, c) for n, c in found if c), key=lambda pair: WORST_FIRST.index(pair[1][0].status))


def counts(checks: Sequence[Check]) -> dict[Status, int]:
    """How many there are of each status, worst first; only what there is."""
    return {status: n for status in WORST_FIRST if (n := sum(check.status == status for check in checks))}


def verdict_line(report: Report) -> str:
    """ "✗ not ready: 1 failed, 2 to look at; first: …"."""
    symbol = CHECK_WORDS[VERDICT_STATUS[report.verdict]][0]
    return f"{symbol} {report.verdict}: {one_line(report.verdict_text)}"


def about_words(about: Mapping[str, str]) -> str:
    """What it was judged for: "pilot · smollm2-135m · cpu"."""
    return " · ".join(one_line(about[key], 60) for key in ("size", "target", "machine") if about.get(key))


def seconds_label(seconds: float | None) -> str:
    """How long a check took: "0.12 s", "14 s"; empty where nothing was measured."""
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def check_line(check: Check, width: int = 0) -> str:
    """ "✗ failed   disk.space   0.3 of 4.2 GiB free"; ``width`` aligns the ids of several lines."""
    symbol, word = CHECK_WORDS[check.status]
    name = one_line(check.id, 100)
    return f"{symbol} {word:<8} {name:<{width}}  {one_line(check.evidence or check.title)}".rstrip()


def remedy_words(check: Check) -> str:
    """What to do about it, with the command of a remedy that the tool can carry out itself."""
    words = one_line(check.remedy)
    if check.action and check.action.command:
        words = f"{words} ({one_line(check.action.command)})" if words else one_line(check.action.command)
    return words


def lines(report: Report, *, only_wrong: bool = False) -> list[str]:
    """The report in words: the verdict, then group by group one check a line, and below it what to do."""
    about = about_words(report.about)
    out = [f"{one_line(report.host, 100) or 'this machine'}: {verdict_line(report)}"]
    kind = "deep" if report.deep else "light checks only; --deep proves imports, kernels, model and extraction"
    out.append(f"judged for {about}; {kind}" if about else kind)
    for group, checks in groups_of(report.checks):
        shown = [check for check in checks if check.status in WRONG or not only_wrong]
        if not shown:
            continue
        out.append(f"\n{group}")
        idle = [check for check in shown if check.deep and check.status == "skipped" and not report.deep]
        shown = [check for check in shown if check not in idle]
        width = max((len(one_line(check.id, 100)) for check in shown), default=0)
        for check in shown:
            out.append(f"  {check_line(check, width)}")
            if check.status in WRONG and (remedy := remedy_words(check)):
                out.append(f"{'':<{width + 15}}→ {remedy}")
        if idle:
            out.append(f"  – {len(idle)} deep check{'s' if len(idle) > 1 else ''} not run")
    return out


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def markdown(report: Report, *, only_wrong: bool = False) -> str:
    """The report as Markdown, for a ticket or a chat: a table a group, what to do and the details below."""
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.as_of)) if report.as_of else "an unknown time"
    out = [f"## Readiness of {escaped(report.host) or 'this machine'}: {report.verdict}", "", escaped(report.verdict_text), ""]
    about = about_words(report.about)
    out += [f"As of {taken} by its clock; {'deep and light' if report.deep else 'light'} checks"
            + (f"; judged for {escaped(about)}" if about else "") + ".", ""]  # fmt: skip
    details: list[str] = []
    for group, checks in groups_of(report.checks):
        shown = [check for check in checks if check.status in WRONG or not only_wrong]
        if not shown:
            continue
        out += [f"### {group}", "", "| | check | evidence | what to do | took |", "|---|---|---|---|---|"]
        for check in shown:
            symbol, word = CHECK_WORDS[check.status]
            remedy = escaped(remedy_words(check)) if check.status in WRONG else ""
            cells = (f"{symbol} {word}", escaped(check.id), escaped(check.evidence), remedy, seconds_label(check.took_s))
            out.append(f"| {' | '.join(cells)} |")
            if check.detail and check.status in WRONG:
                # A line of backticks in the text must not end the block.
                body = [line.replace("```", "'''") for line in clean_lines(check.detail)]
                details += [f"**{escaped(check.id)}**: {escaped(check.why)}", "", "```text", *body, "```", ""]
        out.append("")
    return "\n".join([*out, *details]).rstrip() + "\n"
