"""Following a run in a test, and holding what was told against the files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from remote.container import Container, RunNews
from remote.text import plain


class Watch:
    """Follows a run in the background; ``news`` is everything that was told."""

    def __init__(self, container: Container, run_id: str) -> None:
        self.news: list[RunNews] = []
        self._task = asyncio.create_task(self._follow(container, run_id))

    async def _follow(self, container: Container, run_id: str) -> None:
        async for piece in container.follow(run_id, poll_s=0.05, probe_s=1.0):
            self.news.append(piece)

    @property
    def rows(self) -> int:
        return sum(len(piece.rows) for piece in self.news)

    async def end(self, limit_s: float = 60.0) -> None:
        """Wait until the run has ended and everything has been told."""
        await asyncio.wait_for(self._task, limit_s)

    def cancel(self) -> None:
        self._task.cancel()

    def assert_everything_came_once_in_order(self, run_dir: Path) -> None:
        """Rows, events and log lines against the files of a run of one attempt."""
        assert [row.seq for piece in self.news for row in piece.rows] == [row["seq"] for row in rows(run_dir / "metrics.jsonl")]
        told = [(event.kind, event.t) for piece in self.news for event in piece.events]
        assert told == [(event["kind"], event["t"]) for event in rows(run_dir / "events.jsonl")]
        assert "".join(piece.log for piece in self.news) == plain((run_dir / "attempts" / "1" / "run.log").read_text())
        assert self.news[-1].unreadable == 0
        assert not any(piece.reset for piece in self.news)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def starts(run_dir: Path) -> int:
    """How often a worker of the run began."""
    return sum(event["kind"] == "start" for event in rows(run_dir / "events.jsonl"))


def attempts(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "attempts").iterdir())
