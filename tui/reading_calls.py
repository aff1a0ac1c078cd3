"""What the session reads on demand: logs, notes (which are written too), all rows, runs to compare, servers, what happened."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from remote.errors import ContainerError, LinkError
from tui import messages
from tui.session_part import SessionPart, sentence
from tui.state import RunView

if TYPE_CHECKING:
    from eagle3.core.records import LogFile, LogPage, LogSearch
    from tui.reading import LogAsk


class ReadingCalls(SessionPart):
    """A part of `tui.session.Session`. Answers come as messages."""

    def read_log(self, run_id: str, ask: LogAsk) -> None:
        """Ask about a log; the answer comes as a message. A newer question takes the place of one under way."""
        self._spawn("Reading the log", self._read_log(run_id, ask))

    def read_notes(self, run_id: str) -> None:
        """Read the notes of a run, or of the workspace with ""."""
        self._spawn("Reading the notes", self._notes(run_id, None))

    def save_notes(self, run_id: str, base: str, text: str) -> None:
        """Save an edit of ``base``; what others wrote meanwhile stays."""
        self._change(f"Saving the notes of {run_id or 'the workspace'}", self._notes(run_id, (base, text)))

    def collect(self, run_ids: Sequence[str]) -> None:
        """Read these runs once, for a comparison; each comes as a message of its own."""
        self._spawn("Comparing", self._collect(tuple(run_ids)))

    def add_note(self, run_id: str, line: str) -> None:
        """Add one line to the notes of a run, or of the workspace with "". Another that is still on its way goes on beside it;
        only the same line again takes its place."""
        self._change(f"Adding a note to {run_id or 'the workspace'} ({line})", self._add_note(run_id, line))

    def complete(self, run_id: str) -> None:
        """Bring all rows of a run whose picture is thinned."""
        self._spawn("Reading all rows", self._complete(run_id))

    def ask_services(self) -> None:
        """Ask for the vLLM servers with their command lines and environments."""
        self._spawn("Asking for the servers", self._services())

    def ask_since(self, ago_s: float, container_now: float) -> None:
        """Ask what happened in the last ``ago_s`` seconds, by the container's clock."""
        self._spawn("Looking back", self._since(ago_s, container_now))

    async def _complete(self, run_id: str) -> None:
        container = await self._ready()
        first = True
        try:
            async with contextlib.aclosing(container.complete(run_id)) as pieces:
                async for piece in pieces:
                    self._post(messages.RowsArrived(run_id, piece, first))
                    first = False
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Reading all rows of {run_id}", sentence(error)))

    async def _services(self) -> None:
        try:
            container = await self._ready()
            self._post(messages.ServicesArrived(await container.services()))
        except (LinkError, ContainerError) as error:
            self._post(messages.ServicesArrived(None, sentence(error)))

    async def _since(self, ago_s: float, container_now: float) -> None:
        container = await self._ready()
        try:
            found = await container.since(container_now - ago_s)
        except (LinkError, ContainerError):
            return  # what changed is told from the states alone
        self._post(messages.SinceArrived(found, ago_s))

    async def _read_log(self, run_id: str, ask: LogAsk) -> None:
        answer: list[LogFile] | LogPage | LogSearch | int
        try:
            container = await self._ready()
            if ask.op == "files":
                answer = await container.log_files(run_id)
            elif ask.op == "page":
                answer = await container.log_page(run_id, ask.name, ask.at, ask.before, ask.after)
            elif ask.op == "search":
                at = ask.at if isinstance(ask.at, int) else 0
                answer = await container.log_search(run_id, ask.name, ask.text, ignore_case=ask.ignore_case, at=at)
            else:
                answer = await container.log_time(run_id, ask.name, ask.text)
        except (LinkError, ContainerError) as error:
            self._post(messages.LogFailed(run_id, ask, sentence(error)))
        else:
            self._post(messages.LogArrived(run_id, ask, answer, self._clock()))

    async def _notes(self, run_id: str, edit: tuple[str, str] | None) -> None:
        try:
            container = await self._ready()
            found = await (container.save_notes(*edit, run_id) if edit else container.notes(run_id))
        except (LinkError, ContainerError) as error:
            self._post(messages.NotesFailed(run_id, sentence(error), edit is not None))
        else:
            self._post(messages.NotesArrived(run_id, found, self._clock(), edit is not None))

    async def _collect(self, run_ids: tuple[str, ...]) -> None:
        container = await self._ready()
        for run_id in run_ids:
            view = RunView(run_id)
            try:
                async with contextlib.aclosing(container.follow(run_id)) as following:
                    async for news in following:
                        view.take(news, self._clock())
                        if not news.more:
                            break
                spec_toml = (await container.read_text(run_id, "spec.toml"))["spec.toml"] or ""
            except (LinkError, ContainerError) as error:
                self._post(messages.RunCollected(run_id, None, problem=sentence(error)))
            else:
                self._post(messages.RunCollected(run_id, view, spec_toml))

    async def _add_note(self, run_id: str, line: str) -> None:
        try:
            container = await self._ready()
            await container.add_note(line, run_id)
        except (LinkError, ContainerError) as error:
            self._post(messages.NoteAdded(line, sentence(error)))
        else:
            self._post(messages.NoteAdded(line))
