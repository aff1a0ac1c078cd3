"""The deep check seen from here: started once, then read until it has ended, over whatever links there are meanwhile."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remote.errors import ContainerError, LinkError
from remote.text import made_plain

Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Asks one verb and gives its result; raises LinkError, ContainerError."""

POLL_S = 0.5


@dataclass(frozen=True)
class Told:
    """One line of a job. ``section`` with ``facts``: a section has been answered; ``section`` alone: it is being asked;
    neither: the job's own word (``text``), such as why it ended before its end."""

    section: str = ""
    facts: Mapping[str, Any] | None = None
    text: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    """The line as it came, for jobs of other kinds (the steps of a build)."""

    @property
    def doing(self) -> bool:
        """Whether this says that the section is being asked now."""
        return bool(self.section) and self.facts is None


def new_check_id() -> str:
    """The id of a check: made once per intent, so that starting it again never starts a second."""
    return f"deep-{secrets.token_hex(6)}"


async def follow(call: Call, workspace: str, check_id: str, poll_s: float = POLL_S) -> AsyncGenerator[Told, None]:
    """What the job says, from its beginning to its end. A lost link is waited out.

    Raises ContainerError where the job is not there, LinkError only where nobody dials any more.
    """
    offset = log_offset = 0
    while True:
        args = {"workspace": workspace, "check_id": check_id, "offset": offset, "log_offset": log_offset}
        try:
            answer = made_plain(await call("check_read", args))
        except LinkError as error:
            if error.kind in ("refused", "unreachable"):
                raise
            await asyncio.sleep(min(poll_s, 1.0))
            continue
        for line in answer["lines"]:
            yield told(line)
        offset, log_offset = int(answer["offset"]), int(answer["log_offset"])
        if answer["done"]:
            ended = answer.get("exit") or {}
            if ended.get("error") or ended.get("stopped") or ended.get("code") not in (0, None) or ended.get("signal"):
                why = str(ended.get("error") or ("It was stopped." if ended.get("stopped") else "It failed."))
                yield Told(text=why, more={**ended, "log": str(answer.get("log", ""))[-2000:]})
            return
        if not answer["lines"]:
            await asyncio.sleep(poll_s)


def told(line: str) -> Told:
    """A line of ``facts.jsonl``; one that cannot be read is told as text, not fatal."""
    try:
        row = json.loads(line)
    except ValueError:
        return Told(text=line[:300])
    if not isinstance(row, dict):
        return Told(text=line[:300])
    if isinstance(row.get("facts"), dict):
        return Told(str(row.get("section", "")), row["facts"], more=row)
    if isinstance(row.get("doing"), str) and row["doing"].startswith("deep."):
        return Told(row["doing"], more=row)
    return Told(text=str(row.get("text") or row.get("doing") or ""), more=row)


def started(answer: Mapping[str, Any]) -> str:
    """The id in the answer of a start. Raises ContainerError where there is none."""
    if not answer.get("check_id"):
        raise ContainerError("failed", "The container started a check and named no id.", "Ask again.")
    return str(answer["check_id"])
