"""The texts of a run as pages of them are read and written: its logs and its notes. A part of the facade."""

from __future__ import annotations

from typing import Any, Literal

from eagle3.core.records import LogFile, LogPage, LogSearch, NotesText
from remote.facade_part import READ_LIMIT_S, FacadePart, shaped


class RunTexts(FacadePart):
    """Raises LinkError, ContainerError."""

    async def log_files(self, run_id: str) -> list[LogFile]:
        """The logs of a run: the attempts' and the servers'. Raises as `read`."""
        result = await self._log(run_id, "files")
        return shaped(lambda: [LogFile.model_validate(file) for file in result["files"]], "log")

    async def log_page(self, run_id: str, name: str, at: int | Literal["end"], before: int = 0, after: int = 0) -> LogPage:
        """Lines of a log around the byte ``at``, without reading the rest of it."""
        result = await self._log(run_id, "page", name=name, at=at, before=before, after=after)
        return shaped(lambda: LogPage.model_validate(result), "log")

    async def log_search(self, run_id: str, name: str, pattern: str, *, ignore_case: bool = True, at: int = 0) -> LogSearch:
        """Where a regular expression ("level:error" for lines of a level) is found in the whole log, counted there."""
        result = await self._log(run_id, "search", name=name, pattern=pattern, ignore_case=ignore_case, at=at)
        return shaped(lambda: LogSearch.model_validate(result), "log")

    async def log_time(self, run_id: str, name: str, text: str) -> int:
        """The byte of the first line not older than what ``text`` says: "10:05", "2h" (ago), "2026-11-30 10:05"."""
        return int((await self._log(run_id, "time", name=name, text=text))["at"])

    async def notes(self, run_id: str = "") -> NotesText:
        """NOTES.md of a run, or of the workspace."""
        return await self._notes(run_id, "read")

    async def save_notes(self, base: str, text: str, run_id: str = "") -> NotesText:
        """Save ``text``, an edit of ``base``; what others wrote meanwhile stays, and comes back in the answer."""
        return await self._notes(run_id, "write", base=base, text=text)

    async def add_note(self, line: str, run_id: str = "") -> NotesText:
        """Add one line to the notes of a run, or of the workspace; the same line twice is one note."""
        return await self._notes(run_id, "append", line=line)

    async def _notes(self, run_id: str, op: str, **args: Any) -> NotesText:
        asked = {"workspace": self.workspace, "run_id": run_id, "op": op, **args}
        result = (await self._call("notes", asked, READ_LIMIT_S)).result
        return shaped(lambda: NotesText.model_validate(result), "notes")

    async def _log(self, run_id: str, op: str, **args: Any) -> dict[str, Any]:
        return (await self._call("log", self._of(run_id, op=op, **args), READ_LIMIT_S)).result
