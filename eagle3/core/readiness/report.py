"""The readiness report: the same for the screen, the two command lines and the run that records it.

``{"v","host","as_of","deep","about","verdict","verdict_text","first_fix","checks":[…]}``; see `Check` for one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from eagle3.core.readiness.statuses import Status, Verdict


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Action(Part):
    """A remedy that the tool itself can carry out, after the confirmation ``confirm``. ``verb`` names it ("build_env",
    "free_gpu", "clean_leftovers", "delete") and ``args`` are its arguments, as the helper's verb ``remedy`` takes them as
    ``action`` and ``args``; ``command`` is the same as a shell line, for those who rather type it."""

    verb: str
    args: dict[str, Any] = Field(default_factory=dict)
    label: str = ""
    confirm: str = ""
    command: str = ""


class Check(Part):
    """One judged question. ``id`` is stable ("disk.space", "gpu.ecc:3" for the fourth GPU: after the colon stands which one);
    ``took_s`` is the time that gathering its facts took, None where nothing was asked for it alone."""

    id: str
    group: str
    status: Status
    title: str
    evidence: str = ""
    why: str = ""
    remedy: str = ""
    action: Action | None = None
    detail: str = ""
    took_s: float | None = None
    deep: bool = False

    @property
    def kind(self) -> str:
        """The id without the part that says which one: what the table in the docs lists."""
        return self.id.partition(":")[0]


class Report(Part):
    """All checks with their verdict. ``as_of`` is the container's clock; ``about`` names size, target and machine, empty
    where none was asked for; ``deep`` says whether the heavy probes were run."""

    v: int = 1
    host: str = ""
    as_of: float = 0.0
    deep: bool = False
    about: dict[str, str] = Field(default_factory=dict)
    verdict: Verdict = "not ready"
    verdict_text: str = ""
    first_fix: str = ""
    checks: tuple[Check, ...] = ()


def concluded(checks: Sequence[Check], *, host: str, as_of: float, deep: bool, about: dict[str, str]) -> Report:
    """A report with its verdict. A fail makes it "not ready"; a warn or an unknown "ready with warnings": unknown is
    never taken for ok. No check at all is "not ready": nothing was looked at."""
    failing = [c for c in checks if c.status == "fail"]
    doubtful = [c for c in checks if c.status in ("warn", "unknown")]
    first = next(iter([*failing, *doubtful]), None)
    if failing or not checks:
        verdict: Verdict = "not ready"
    else:
        verdict = "ready with warnings" if doubtful else "ready"
    return Report(
        host=host, as_of=as_of, deep=deep, about=about, verdict=verdict, checks=tuple(checks),
        verdict_text=_sentence(failing, doubtful, first), first_fix=first.id if first else "",
    )  # fmt: skip


def _sentence(failing: Sequence[Check], doubtful: Sequence[Check], first: Check | None) -> str:
    if first is None:
        return "Every check passed."
    counts = [f"{len(found)} {word}" for found, word in ((failing, "failed"), (doubtful, "to look at")) if found]
    return f"{', '.join(counts)}; first: {first.title}: {first.evidence or first.remedy}"
