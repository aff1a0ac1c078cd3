"""A log as it is being read: a window of its lines, the place in it, a search. Pure: what to ask for next, and what to
make of an answer. The log itself stays in the container.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eagle3.core.records import LogFile, LogLine, LogPage, LogSearch

WINDOW_LINES = 3000
"""Lines kept here; those far from the reader are let go."""
PAGE_LINES = 500
ABOVE_LINES = 5
"""Lines shown above a place that was jumped to: what led to it."""

Place = Literal["end", "at", "earlier", "later"]


@dataclass(frozen=True)
class LogAsk:
    """A question about the log ``name``. ``place`` says how a page joins what is shown: "earlier" and "later" join the
    window, "at" and "end" begin a new one."""

    op: Literal["files", "page", "search", "time"]
    name: str = ""
    place: Place = "at"
    at: int | Literal["end"] = 0
    before: int = 0
    after: int = 0
    text: str = ""
    ignore_case: bool = True


@dataclass
class Search:
    """A pattern and where it was found: ``offsets`` of matching lines around the reader, ascending, of ``total``."""

    pattern: str
    offsets: list[int] = field(default_factory=list)
    total: int = 0
    first: int = 0
    """How many matches lie before ``offsets[0]``."""
    current: int | None = None
    levels: dict[str, int] = field(default_factory=dict)
    ignore_case: bool = True
    size: int = 0
    """Bytes of the log when it was searched; what was written since was not looked at."""

    @property
    def position(self) -> int | None:
        """Which match the reader is at, counted from 1."""
        if self.current is None or self.current not in self.offsets:
            return None
        return self.first + bisect_left(self.offsets, self.current) + 1


@dataclass
class Reading:
    """One run's logs on the screen. ``top`` is the byte where the first line in sight begins."""

    run_id: str
    files: list[LogFile] = field(default_factory=list)
    name: str = ""
    lines: list[LogLine] = field(default_factory=list)
    start: int = 0
    end: int = 0
    size: int = 0
    at: float | None = None
    """When the log was last heard of, by this machine's clock."""
    top: int = 0
    following: bool = True
    search: Search | None = None
    problem: str = ""
    refused: str = ""
    """Why the last search or time came to nothing. It stays until the next one: a poll brings a page each second."""
    asked: LogAsk | None = None
    """The question under way: one at a time, so that a slow link is not flooded."""

    # --- what to ask

    def open(self, name: str) -> LogAsk:
        """Begin to read ``name`` at its end."""
        self.name, self.lines, self.start, self.end, self.size, self.at = name, [], 0, 0, 0, None
        self.following, self.search, self.problem, self.refused = True, None, "", ""
        return self.to_end()

    def to_end(self) -> LogAsk:
        self.following = True
        return LogAsk("page", self.name, "end", "end", before=PAGE_LINES, after=1)

    def to(self, at: int) -> LogAsk:
        """Show the byte ``at`` near the top, whatever is shown now."""
        self.following = False
        return LogAsk("page", self.name, "at", at, before=PAGE_LINES // 2, after=PAGE_LINES)

    def wanted(self, height: int, *, poll: bool) -> LogAsk | None:
        """The page that is missing around what is in sight, if any: the next screen either way, and with ``poll``, while
        following, what is new."""
        if not self.name or self.asked is not None:
            return None
        index = self.index
        if self.start > 0 and index < height:
            return LogAsk("page", self.name, "earlier", self.start, before=PAGE_LINES)
        if len(self.lines) - index < 2 * height and (self.end < self.size or (poll and self.following)):
            return LogAsk("page", self.name, "later", self.end, after=PAGE_LINES)
        return None

    def other(self, step: int) -> str:
        """The name of the log ``step`` places on."""
        names = [file.name for file in self.files]
        if not names:
            return ""
        return names[(names.index(self.name) + step) % len(names)] if self.name in names else names[0]

    def look_for(self, pattern: str) -> LogAsk:
        """Search from the line in sight on. A pattern in small letters finds capitals too."""
        return LogAsk("search", self.name, at=self.top, text=pattern, ignore_case=pattern == pattern.lower())

    def next_match(self, forward: bool) -> int | LogAsk | None:
        """The next match's offset; a search where it lies beyond the known ones, or where the log has grown since it was
        searched; None at the last one."""
        found = self.search
        if found is None or not (found.offsets or (forward and self.grown)):
            return None
        if not found.offsets:
            return self._search_on("at", self.top)
        here = self.top if found.current is None else found.current
        place = bisect_right(found.offsets, here) if forward else bisect_left(found.offsets, here) - 1
        if 0 <= place < len(found.offsets):
            return found.offsets[place]
        beyond = found.first + len(found.offsets) < found.total or self.grown if forward else found.first > 0
        if not beyond:
            return None
        return self._search_on("at", found.offsets[-1] + 1) if forward else self._search_on("earlier", found.offsets[0])

    @property
    def grown(self) -> bool:
        """Whether the log is longer than when it was searched."""
        return self.search is not None and self.size > self.search.size

    def _search_on(self, place: Place, at: int) -> LogAsk:
        assert self.search is not None
        return LogAsk("search", self.name, place, at, text=self.search.pattern, ignore_case=self.search.ignore_case)

    # --- what came

    def take_files(self, files: list[LogFile]) -> None:
        self.files = files

    def take_page(self, ask: LogAsk, page: LogPage, at: float, height: int) -> None:
        """Join or replace the window with what came for ``ask``."""
        self.at, self.size, self.problem = at, page.size, ""
        if ask.place == "later" and ask.at == self.end:
            if page.size < self.end:  # the log begins anew
                self.lines, self.start, self.end, self.top, self.search = [], 0, 0, 0, None
                return
            half = bool(self.lines) and bool(page.lines) and page.start < self.end
            if half:  # the last line was not whole yet: it comes again, longer
                self.lines = self.lines[: bisect_left([line.at for line in self.lines], page.start)]
            self.lines += page.lines
            self.end = page.end
            self.lines, cut = self.lines[-WINDOW_LINES:], len(self.lines) > WINDOW_LINES
            self.start = self.lines[0].at if cut else self.start
        elif ask.place == "earlier" and ask.at == self.start:
            self.lines = [*page.lines, *self.lines]
            self.start = page.start
            if len(self.lines) > WINDOW_LINES:
                self.end = self.lines[WINDOW_LINES].at
                self.lines = self.lines[:WINDOW_LINES]
        elif ask.place in ("at", "end"):
            self.lines, self.start, self.end = list(page.lines), page.start, page.end
            if isinstance(ask.at, int):
                self.top = ask.at
                self.show_at(ask.at, height)
        if self.following:
            self.scroll_to_end(height)

    def take_search(self, ask: LogAsk, found: LogSearch) -> int | None:
        """Keep what was found; gives the match to go to: the first one from the reader on, else the last one before."""
        offsets = [*found.before, *found.after]
        first = found.index - len(found.before)
        looked = max(self.size, found.scanned)
        self.search = Search(ask.text, offsets, found.total, first, None, found.levels, ask.ignore_case, looked)
        if not offsets:
            return None
        backward = ask.place == "earlier" or not found.after
        self.search.current = found.before[-1] if backward and found.before else found.after[0]
        return self.search.current

    # --- the place

    @property
    def index(self) -> int:
        """Where in the window the first line in sight is."""
        starts = [line.at for line in self.lines]
        return max(0, min(bisect_right(starts, self.top) - 1, len(starts) - 1))

    def visible(self, height: int) -> list[LogLine]:
        """The lines in sight, as many as ``height`` rows could hold."""
        return self.lines[self.index : self.index + height]

    def scroll(self, rows: int, height: int) -> None:
        """Move by lines. Going up lets go of the end; reaching it by going down takes hold of it."""
        if not self.lines:
            return
        last = max(0, len(self.lines) - height)
        index = max(0, min(self.index + rows, last if rows > 0 else len(self.lines) - 1))
        self.top = self.lines[index].at
        self.following = rows > 0 and index >= last and self.end >= self.size

    def scroll_to_end(self, height: int) -> None:
        if self.lines:
            self.top = self.lines[max(0, len(self.lines) - height)].at

    def show_at(self, at: int, height: int) -> bool:
        """Bring the line at ``at`` into sight with a few lines above it; false where the window does not hold it."""
        starts = [line.at for line in self.lines]
        if not starts or not self.start <= at < max(self.end, starts[-1] + 1):
            return False
        self.following = False
        index = max(0, bisect_right(starts, at) - 1)
        self.top = starts[max(0, min(index - ABOVE_LINES, max(0, len(starts) - height)))]
        return True

    @property
    def share(self) -> float | None:
        """How far down the log the reader is, 0 to 1."""
        return None if not self.size else min(1.0, (self.end if self.following else self.top) / self.size)
