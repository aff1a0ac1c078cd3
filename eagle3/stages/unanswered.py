"""Prompts that got no answer in regenerate: which are left out, by name, and which end the stage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import httpx

from eagle3.engines.blame import NAME as DEATHS
from eagle3.engines.blame import REASON, Blame
from eagle3.engines.completions import Failure, RequestFailed
from eagle3.engines.server import Server
from eagle3.engines.with_server import DYING_S, WithServer
from eagle3.rows import Row
from eagle3.stages.context import StageContext, StageError

_DEATHS = 3
"""Of a server, at which a prompt was there, before it may be to blame."""


class Kept(Protocol):
    """Where the answers are kept, and what is put down in place of one."""

    @property
    def total(self) -> int:
        """How many prompts there are."""

    def any(self) -> bool:
        """Whether a prompt has an answer that is more than a refusal."""

    def answered(self) -> int:
        """How many prompts have an answer that is more than a refusal."""

    def failed(self) -> int:
        """How many prompts were put aside for want of an answer, in whatever attempt."""

    def add(self, prompt: Row, row: Row) -> None:
        """Keep what came of a prompt."""


class Killers:
    """The prompts that a server dies of, found by who was with it at each of its deaths. ``content``: a hash of a prompt."""

    def __init__(self, ctx: StageContext, answers: Kept, content: Callable[[Row], str], *, dying_s: float = DYING_S) -> None:
        self._ctx, self._answers = ctx, answers
        self._blame = Blame(ctx.path("data", DEATHS).parent, _DEATHS, content)
        self._with_server = WithServer(dying_s)

    async def turns(
        self, prompts: Sequence[Row], concurrency: int, watch: Callable[[], None]
    ) -> AsyncIterator[tuple[list[Row], int]]:
        """Which prompts are asked for, and how many at once: suspects last and one at a time. ``watch`` raises where the server
        has died."""
        self._with_server.nobody()
        # Found guilty by an attempt that ended before it was put down.
        left_out = [prompt for prompt in prompts if self._is_left_out(prompt)]
        prompts = [prompt for prompt in prompts if prompt not in left_out]
        suspects = self._blame.suspects(prompts)
        if suspects:
            text = f"{len(suspects)} prompts were with the server when it died, twice; they are asked last and one at a time."
            self._ctx.journal.event("suspects", text, level="warn")
        alone = {prompt["index"] for prompt in suspects}
        yield [prompt for prompt in prompts if prompt["index"] not in alone], concurrency
        for prompt in suspects:
            await self._with_server.certain(watch)
            self._with_server.nobody()  # of the others nothing is under way any more
            yield [prompt], 1

    @asynccontextmanager
    async def watching(self, prompt: Row) -> AsyncIterator[None]:
        """While the prompt is with the server."""
        self._with_server.begins(prompt)
        try:
            yield
        except RequestFailed as error:
            self._with_server.fails(prompt, error)
            raise
        self._with_server.is_answered()
        self._with_server.leaves(prompt["index"])

    def died(self) -> bool:
        """The server has died: keep which prompts were with it, and leave out the one that it is shown to die of, as long as
        those left out are few. True where that explains its deaths."""
        with_it = self._with_server.items
        self._with_server.nobody()
        before = self._blame.guilty(with_it)
        explained = self._blame.died(with_it, landed=self._answers.answered(), attempt=self._ctx.journal.attempt, now=time.time())
        for prompt in with_it:
            if prompt["index"] not in self._blame.guilty([prompt]) - before:
                continue
            if not self._is_left_out(prompt):
                return False
        return explained

    def _is_left_out(self, prompt: Row) -> bool:
        """Leave out a prompt that the server dies of, if one more may be."""
        if not self._blame.guilty([prompt]):
            return False
        if not _room_for(self._ctx, 1, self._answers):
            text = (
                f"The server dies of the prompt '{prompt['id']}', and no more may be left out (guards.quarantined_share); "
                "take it out of the prompts, or fork the run with a larger share."
            )
            self._ctx.journal.event("data", text, level="error")
            return False
        with contextlib.suppress(OSError):  # on a full disk it is put down when the stage goes on
            self._answers.add(prompt, {"refused": REASON, "failed": True})
        self._ctx.journal.event("data", f"Prompt '{prompt['id']}' is left out: {REASON}.", level="warn")
        return True


def settle(ctx: StageContext, server: Server, failures: Sequence[Failure[Row]], answers: Kept) -> None:
    """Leave out the prompts that the server refuses, and those that it cannot answer though it lives, as long as these are no
    more than ``guards.quarantined_share`` of all prompts; each is said. Raises StageError where the fault is not the prompts'."""
    refused = [failure for failure in failures if failure.error.refused]
    failed = [failure for failure in failures if not failure.error.refused]
    if failed and not (_few(ctx, failed, answers) and _lives(server)):
        first = failed[0]
        raise StageError(
            f"{len(failed)} of the prompts got no answer, '{first.item['id']}' first ({first.error}); "
            "resume the run to ask for these alone.",
            detail=_each(failed),
        )
    if refused and not answers.any():
        # Then it is not the prompts. Nothing is put down, so that a resume asks again.
        first = refused[0]
        raise StageError(
            f"The server refuses every prompt, '{first.item['id']}' first ({first.error}); "
            "correct target.max_model_len, regenerate.max_new_tokens or server.args, and start a run with them."
        )
    _leave_out(ctx, refused, answers, lambda failure: {"refused": str(failure.error)}, "The server refuses {} prompts")
    _leave_out(
        ctx, failed, answers, lambda failure: {"refused": str(failure.error), "failed": True},
        "The server lives and gives no answer to {} prompts",
    )  # fmt: skip


def _few(ctx: StageContext, failed: Sequence[Failure[Row]], answers: Kept) -> bool:
    """Whether these may be the prompts' own fault: others have an answer, and all that were ever put aside are a small share."""
    reached = not any(failure.error.unreachable for failure in failed)
    return reached and answers.any() and _room_for(ctx, len(failed), answers)


def _room_for(ctx: StageContext, more: int, answers: Kept) -> bool:
    """Whether so many more prompts may be left out."""
    return more + answers.failed() <= ctx.spec.guards.quarantined_share * answers.total


def _lives(server: Server) -> bool:
    """Whether the server is well now that nothing is in flight. Raises ServerDied where it has ended."""
    server.check_alive()
    try:
        with server.client() as http:
            return http.get("/health").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _leave_out(
    ctx: StageContext, some: Sequence[Failure[Row]], answers: Kept, row: Callable[[Failure[Row]], Row], words: str
) -> None:
    for failure in some:
        answers.add(failure.item, row(failure))
    if some:
        text = f"{words.format(len(some))}, '{some[0].item['id']}' first; they are left out."
        ctx.journal.event("data", text, level="warn", detail=_each(some))


def _each(some: Sequence[Failure[Row]]) -> str:
    return "\n".join(f"{failure.item['id']}: {failure.error}" for failure in some[:50])
