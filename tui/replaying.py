"""Playing a recording: a container that says again, at the right moments, what one had said. It has no connection, and
everything that would need one is refused in a sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError

from eagle3.core.records import Event, MetricRow, Probe, Progress, Result, RunSummary
from remote.ask import Ask
from remote.errors import ContainerError, LinkError
from remote.follow import RunNews, Thinned
from tui.ports import Connect, ContainerPort, OnLink
from tui.recording import LATEST, Entry, Recording
from tui.state import LinkState

NOT_UNDERSTOOD = "A piece of the recording cannot be understood by this console."
FILES = frozenset({"metrics.jsonl", "events.jsonl", "run.log"})


class ReplayClock:
    """The time of the recording: it runs ``speed`` times as fast as ``monotonic``, and stands still at the end."""

    def __init__(self, recording: Recording, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._begun, self._ended, self.speed = recording.begun, recording.ended, speed
        self._monotonic, self._started = monotonic, monotonic()

    def __call__(self) -> float:
        return min(self._ended, self._begun + (self._monotonic() - self._started) * self.speed)

    @property
    def at_end(self) -> bool:
        return self() >= self._ended

    async def until(self, t: float) -> None:
        """Return when the recording's time is ``t``."""
        if (left_s := min(t, self._ended) - self()) > 0:
            await asyncio.sleep(left_s / self.speed)


class ReplayContainer:
    """One host of a recording, as a `ContainerPort`. What it was not asked then, it cannot answer now."""

    def __init__(self, host: str, recording: Recording, clock: ReplayClock, on_link: OnLink) -> None:
        self._host, self._clock, self._on_link = host, clock, on_link
        self._entries = [entry for entry in recording.entries if entry.host == host]
        self._seen = -1
        self._links: asyncio.Task[None] | None = None
        self.link = LinkState("connecting", recording.begun)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(ContainerPort, name):
            raise AttributeError(name)

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            raise self._refusal()

        async def refuse_lines(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            raise self._refusal()
            yield  # an async generator, as the real one

        return refuse_lines if name in ("deep_check", "follow_job", "complete") else refuse

    def _refusal(self) -> ContainerError:
        return ContainerError("usage", f"This is a replay of {self._host}; it holds only what the console had received.")

    def reconnect(self) -> None:
        """There is nothing to connect to."""

    def watch(self, run_id: str) -> None:
        """There is nobody to be told."""

    async def open(self, *, persist: bool = False) -> None:
        self._links = asyncio.create_task(self._play_links(), name=f"replay of {self._host}")

    async def close(self) -> None:
        if self._links is not None:
            self._links.cancel()

    async def _play_links(self) -> None:
        for entry in self._entries:
            if entry.kind == "link":
                await self._clock.until(entry.t)
                data = entry.data
                self.link = LinkState(str(data.get("status")), _since(data, entry.t), str(data.get("reason") or ""))
                self._on_link(self.link)

    async def probe(self) -> Probe:
        """The newest probe that is due and was not told yet; waits for the next one where there is none. At the end it waits
        for ever, as the recording's time does."""
        later = [n for n, entry in enumerate(self._entries) if n > self._seen and entry.kind in ("probe", "failed")]
        if not later:
            await asyncio.Event().wait()
        now = self._clock()
        due = [n for n in later if self._entries[n].t <= now]
        told = [n for n in due if self._entries[n].kind == "probe"]  # a failure keeps the last picture, so that comes first
        self._seen = (told or due or later[:1])[-1]
        entry = self._entries[self._seen]
        await self._clock.until(entry.t)
        if entry.kind == "failed":
            raise LinkError("lost", str(entry.data.get("text")))
        try:
            return Probe.model_validate(entry.data)
        except ValidationError as error:
            raise ContainerError("failed", NOT_UNDERSTOOD) from error

    async def follow(self, run_id: str, poll_s: float = 1.0, probe_s: float | None = None) -> AsyncGenerator[RunNews, None]:
        """The news of a run: at once what had come since the console began to follow it, then the rest as it comes."""
        mine = [entry for entry in self._entries if entry.run_id == run_id and entry.kind in ("news", "lost")]
        if not mine:
            raise ContainerError("not_found", f"The recording holds no news of {run_id}: it was not open then.")
        now = self._clock()
        begun = [n for n, entry in enumerate(mine) if entry.fresh and entry.t <= now]
        for number, entry in enumerate(mine[begun[-1] if begun else 0 :]):
            await self._clock.until(entry.t)
            if entry.kind == "news":
                yield _news(entry, again=bool(number) and entry.fresh)
        await asyncio.Event().wait()


def _news(entry: Entry, again: bool) -> RunNews:
    """``again``: the console had begun to follow anew, so what was told before is dropped."""
    data = entry.data
    try:
        thinned = data.get("thinned")
        return RunNews(
            RunSummary.model_validate(data["summary"]),
            Progress.model_validate(data["progress"]) if data.get("progress") else None,
            [MetricRow.model_validate(row) for row in data.get("rows", ())],
            [Event.model_validate(event) for event in data.get("events", ())],
            str(data.get("log", "")),
            FILES if again else frozenset(data.get("reset", ())),
            Result.model_validate(data["result"]) if data.get("result") else None,
            thinned=Thinned(int(thinned[0]), int(thinned[1])) if thinned else None,
            log_skipped_bytes=int(data.get("log_skipped_bytes", 0)),
        )
    except (ValidationError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ContainerError("failed", NOT_UNDERSTOOD) from error


def _since(data: Mapping[str, Any], otherwise: float) -> float:
    """Since when a link is as it is; ``otherwise`` where the recording has no time for it."""
    since = data.get("since")
    return float(since) if isinstance(since, int | float) and 0 < since <= LATEST else otherwise


def title(recording: Recording) -> str:
    """ "replay of box, recorded 2026-11-30 10:00 to 10:12": what is played, by this machine's time zone."""
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(recording.begun))
    return f"replay of {', '.join(recording.hosts)}, recorded {day} to {time.strftime('%H:%M', time.localtime(recording.ended))}"


def replayed(host: str, recording: Recording, clock: ReplayClock) -> Connect:
    """The factory of a recorded host, for the console."""

    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        return cast(ContainerPort, ReplayContainer(host, recording, clock, on_link))

    return connect
