"""Prompts that got no answer in regenerate: which are left out, by name, and which end the stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import httpx

from eagle3.engines.completions import Failure
from eagle3.engines.server import Server
from eagle3.rows import Row
from eagle3.stages.context import StageContext, StageError


class Kept(Protocol):
    """Where the answers are kept, and what is put down in place of one."""

    @property
    def total(self) -> int:
        """How many prompts there are."""

    def any(self) -> bool:
        """Whether a prompt has an answer that is more than a refusal."""

    def failed(self) -> int:
        """How many prompts were put aside for want of an answer, in whatever attempt."""

    def add(self, prompt: Row, row: Row) -> None:
        """Keep what came of a prompt."""


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
    return reached and answers.any() and len(failed) + answers.failed() <= ctx.spec.guards.quarantined_share * answers.total


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
