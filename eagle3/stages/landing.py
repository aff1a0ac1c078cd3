"""Asking an extraction server for the states of many samples, and what becomes of each as it lands.

A sample is asked for ``extract.tries`` times, each with a limit from its length. What then has no right states is put aside with
its reason (``eagle3.states.quarantine``); too many of those end the stage, by the guard ``quarantined``. What is the server's
fault or the disk's is not counted against a sample: both are waited for, for a while.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from eagle3.core import guards
from eagle3.core.backing_off import BackOff, Change
from eagle3.engines.blame import REASON, Blame
from eagle3.engines.completions import Completions, RequestFailed, run_bounded
from eagle3.engines.slots import Slots
from eagle3.engines.with_server import WithServer
from eagle3.rows import Row
from eagle3.runner.handed import Handed, NotItsFile
from eagle3.stages import guarding
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.stages.room import DiskRoom
from eagle3.states.beside import beside
from eagle3.states.checking import MixedUp, StateError
from eagle3.states.quarantine import Quarantine
from eagle3.store import StateRow, StateStore

_ROW_EVERY_S = 2.0
_WAIT_S = 0.2
_LOCK_PATIENCE_S = 60.0
_LOOK_FIRST_S, _LOOK_MOST_S = 0.01, 0.16
"""Between two looks at a file that is being written. A server that computes on the same processors takes most of a second for it;
a hundred looks by each sample in that time took a hundredth of the machine, and no request waits for this."""
_UNREACHABLE_S = 120.0
"""How long a server that lives may refuse connections before the stage ends; it is not the samples' fault."""
_TOLD_ONE_BY_ONE = 5
_MIXED_UP_ROUNDS = 2
_UNDER_WAY = 2
"""Samples under way for each request in flight: while an answer is written, checked and hashed, the server has the next one."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ExtractionServer(Protocol):
    """What is used of a server in extraction mode."""

    base_url: str
    model: str
    log_path: Path
    handed: Handed | None

    def check_alive(self) -> None:
        """Raise StageError where it has ended or answers nothing any more."""

    def limit(self) -> int | None:
        """Requests that may be in flight now at a server that others use too; None for the run's own."""


class Landing:
    """The samples of one attempt on their way: ``done`` grows with each that is whole, ``quarantine`` with each that is put
    aside. ``landed_tokens``: tokens of those that became whole here."""

    def __init__(
        self,
        ctx: StageContext,
        server: ExtractionServer,
        store: StateStore,
        done: dict[int, StateRow],
        quarantine: Quarantine,
        blame: Blame | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._ctx, self._server, self._store, self._clock = ctx, server, store, clock
        self.done, self.quarantine = done, quarantine
        self._blame = blame or Blame(store.folder, ctx.spec.extract.tries)
        self.landed_tokens = 0
        self.hold = Hold(ctx, "extract", "samples")
        self.room = DiskRoom(ctx, self.hold, clock=clock, free_bytes=free_bytes)
        # One thing holds a server back: at one that others use too its own figure, over everybody's requests.
        shared = server.limit() is not None
        self._own = None if shared else BackOff(ctx.spec.extract.concurrency, ctx.spec.extract.p95_factor)
        self._slots: Slots
        self._threads: ThreadPoolExecutor | None = None
        self._left: list[tuple[Row, Future[StateRow]]] = []
        self._mixed_up: set[int] = set()
        self._ends = False
        self._with_server = WithServer()
        self._unreachable_since: float | None = None
        self._began = self._last = clock()

    def died(self) -> bool:
        """The server has died: keep which samples were with it, and put aside the one that it is shown to die of. True where
        that explains its deaths."""
        with_it = self._with_server.items
        self._with_server.nobody()
        before = self._blame.guilty(with_it)
        attempt = self._ctx.journal.attempt
        explained = self._blame.died(with_it, landed=len(self.done), attempt=attempt, now=time.time())
        guilty = self._blame.guilty(with_it) - before
        for sample in with_it:
            if sample["index"] in guilty:
                self._put_aside(sample, REASON, tries=self._blame.deaths(sample))
        return explained

    async def all(self, samples: Sequence[Row], among: Sequence[Row] = ()) -> None:
        """Ask for every sample; ``among``: those that are whole already too, for one of them may turn out to be another's.

        Raises StageError where the stage cannot go on, Stopped on a stop; what has landed stays.
        """
        settings = self._ctx.spec.extract
        self.hold.total = len(samples) + len(self.done) + len(self.quarantine.rows)
        self._unreachable_since, self._ends = None, False
        self._with_server.nobody()
        self.hold.done = len(self.done) + len(self.quarantine.rows)
        # A cold model may take as long for its first sample as any sample may take.
        self._ctx.journal.progress(
            "extract", self.hold.done, self.hold.total, "samples",
            quiet_s=settings.request_timeout_s, reason="the first samples are on their way",
        )  # fmt: skip
        try:
            with beside(settings.concurrency) as self._threads:
                await self._all(samples, among)
        finally:
            self._take_in()
        self._conclude()

    async def _all(self, samples: Sequence[Row], among: Sequence[Row]) -> None:
        settings = self._ctx.spec.extract
        # Of this event loop: after a server's death another one goes on.
        self._slots = Slots(settings.concurrency, self._limit, self.hold)
        async with Completions(self._server.base_url, timeout_s=settings.request_timeout_s, retries=0) as client:
            land = partial(self._land, client)
            asked: Sequence[Row] = samples
            for _ in range(1 + _MIXED_UP_ROUNDS):
                suspects = self._blame.suspects(asked)
                alone = {sample["index"] for sample in suspects}
                self._tell_suspects(len(alone))
                others = [sample for sample in asked if sample["index"] not in alone]
                await run_bounded(others, land, concurrency=_UNDER_WAY * settings.concurrency, watch=self._watch, hold=self.hold)
                await run_bounded(suspects, partial(self._land_alone, client), concurrency=1, watch=self._watch, hold=self.hold)
                asked = [sample for sample in among or samples if sample["index"] in self._mixed_up]
                self._mixed_up.clear()
                if not asked:
                    break
                for sample in asked:
                    self.done.pop(sample["index"], None)

    def _watch(self) -> None:
        self._ctx.check_stop()
        self._server.check_alive()

    def _limit(self) -> int | None:
        """Requests that may be in flight now."""
        return self._server.limit() if self._own is None else self._own.limit

    def _tell_suspects(self, count: int) -> None:
        if count:
            text = f"{count} samples were with the server when it died, twice; they are asked for last and one at a time."
            self._ctx.journal.event("suspects", text, level="warn")

    async def _land_alone(self, client: Completions, sample: Row) -> None:
        await self._with_server.certain(self._watch)
        self._with_server.nobody()  # of the others nothing is under way any more
        await self._land(client, sample)

    async def _land(self, client: Completions, sample: Row) -> None:
        size = self._store.landing_bytes(len(sample["input_ids"]))
        await self._take_room(size)
        try:
            row = await self._states(client, sample, size)
        finally:
            self.room.give(size)
        if row is not None:
            self._landed(row)
        self._tell(force=False)
        found = self._judged(all_asked=False)
        if found and not self._ends:  # others may land before the first one's error has ended them
            self._ends = True
            guarding.act(self._ctx, found)

    def _landed(self, row: StateRow) -> None:
        self._with_server.leaves(row.index)
        self.done[row.index] = row
        self.landed_tokens += row.tokens

    def _take_in(self) -> None:
        """What the server had handed over when everything broke off: it has landed by now, and its death is none of theirs."""
        for sample, landing in self._left:
            error = landing.exception()
            if error is None:
                self._landed(landing.result())
            elif isinstance(error, StateError):
                self._with_server.leaves(sample["index"])
                self._doubt(error)
        self._left.clear()

    async def _take_room(self, size: int) -> None:
        while not self.room.take(size):  # noqa: ASYNC110 - space comes from outside this process
            await asyncio.sleep(_WAIT_S)

    async def _states(self, client: Completions, sample: Row, size: int) -> StateRow | None:
        """The states of one sample, on disk and checked; None where it was put aside."""
        settings, tries, reason = self._ctx.spec.extract, 0, ""
        while tries < settings.tries:
            if tries:
                await asyncio.sleep(settings.backoff_s * 2 ** (tries - 1))
            try:
                row = await self._once(client, sample)
            except RequestFailed as error:
                reason, fatal = str(error), error.refused
                if error.unreachable:
                    await self._wait_for_server(reason)
                    continue
            except StateError as error:
                reason, fatal = f"its states are wrong: {error}", False
                self._with_server.leaves(sample["index"])
                self._doubt(error)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                reason, fatal = f"its states could not be written ({error.strerror})", False
            else:
                return row
            if self.room.short(size):
                # A server without room leaves no file and no word of it.
                self.room.give(size)
                await self._take_room(size)
                continue
            tries = settings.tries if fatal else tries + 1
            if tries < settings.tries:
                text = f"Sample {sample['index']} ('{sample['id']}'): {reason}; it is asked for again."
                self._ctx.journal.event("integrity", text, level="warn")
        self._put_aside(sample, reason)
        return None

    async def _once(self, client: Completions, sample: Row) -> StateRow:
        tokens = len(sample["input_ids"])
        async with self._slots.one():
            began = self._clock()
            self._with_server.begins(sample)
            try:
                raw = await request(client, self._server, sample, limit_s(self._ctx, tokens))
            except RequestFailed as error:
                self._with_server.fails(sample, error)
                if not error.unreachable:
                    self._seen(self._clock() - began, tokens)
                raise
            self._with_server.is_answered()
            self._seen(self._clock() - began, tokens)
        handed = handed_by(self._server)
        try:
            await written(handed, raw, limit_s=max(_LOCK_PATIENCE_S, limit_s(self._ctx, tokens)))
        except BaseException:
            handed.remove(raw)
            raise
        assert self._threads is not None
        landing = self._threads.submit(self._adopt, handed, raw, sample)
        waited_for = asyncio.wrap_future(landing)
        waited_for.add_done_callback(lambda done: done.cancelled() or done.exception())  # else one left alone is told on stderr
        try:
            return await asyncio.shield(waited_for)
        except asyncio.CancelledError:
            self._left.append((sample, landing))  # its thread ends it, and is waited for
            raise

    def _adopt(self, handed: Handed, raw: Path, sample: Row) -> StateRow:
        try:
            return self._store.adopt(raw, sample)
        finally:
            handed.remove(raw)

    def _seen(self, seconds: float, tokens: int) -> None:
        self._unreachable_since = None  # a connection came about, whatever was answered
        change = self._own.take(seconds, tokens) if self._own is not None else None
        if change is not None and (change.after < change.before or change.after == self._ctx.spec.extract.concurrency):
            self._ctx.journal.event("backing-off", _words(change), level="warn" if change.after < change.before else "info")

    def _doubt(self, error: StateError) -> None:
        """Of two samples with the same states either may be the wrong one: the other is asked for again too."""
        if isinstance(error, MixedUp):
            self._mixed_up.add(error.other)

    async def _wait_for_server(self, reason: str) -> None:
        now = self._clock()
        self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
        if now - self._unreachable_since > _UNREACHABLE_S:
            raise StageError(
                f"The extraction server cannot be reached for {_UNREACHABLE_S:.0f} s though it runs ({reason}); "
                f"look at {self._server.log_path}, then resume the run."
            )
        await asyncio.sleep(_WAIT_S)

    def _put_aside(self, sample: Row, reason: str, *, tries: int = 0) -> None:
        journal = self._ctx.journal
        tries = tries or self._ctx.spec.extract.tries
        self.quarantine.put(sample, reason, tries=tries, attempt=journal.attempt, now=time.time())
        if len(self.quarantine.rows) <= _TOLD_ONE_BY_ONE:
            text = f"Sample {sample['index']} ('{sample['id']}') is put aside: {reason}."
            journal.event("quarantine", text, level="warn")

    def _judged(self, *, all_asked: bool) -> list[guards.Finding]:
        aside, asked = len(self.quarantine.rows), len(self.quarantine.rows) + len(self.done)
        if not aside:
            return []
        found = guards.put_aside(aside, asked, self._ctx.spec.guards, self.quarantine.reasons(), all_asked=all_asked)
        # Before the end only a stop cannot wait: warnings and pauses are told once, at the end.
        return found if all_asked else [finding for finding in found if finding.response == "stop"]

    def _conclude(self) -> None:
        """Tell what was put aside, and judge it."""
        self._tell()
        aside = len(self.quarantine.rows)
        if not aside:
            return
        total = aside + len(self.done)
        self._ctx.journal.event(
            "quarantine",
            f"{aside} of {total} samples have no usable states and are left out of the training: {self.quarantine.reasons()}. "
            "states/quarantine.jsonl lists them; while extract has not finished a resume tries them again, but for those "
            "that the server dies of.",
            level="warn",
            quarantined=aside,
            samples=total,
        )
        paused = guarding.act(self._ctx, self._judged(all_asked=True))
        if not self.done:
            raise StageError(
                f"None of the {total} samples has usable states ({self.quarantine.reasons(1)}); look at {self._server.log_path}, "
                "then resume the run."
            )
        if paused:
            self.hold.wait()

    def _tell(self, *, force: bool = True) -> None:
        """Progress, and a metric row every few seconds."""
        finished, total = len(self.done) + len(self.quarantine.rows), self.hold.total
        self.hold.done = finished
        self.hold.progress(force=force or finished == total)
        now = self._clock()
        if self.landed_tokens and (now - self._last >= _ROW_EVERY_S or finished == total):
            self._last = now
            seconds = max(now - self._began - self.hold.seconds, 1e-9)
            self._ctx.journal.metrics("extract", finished, tok_s=self.landed_tokens / seconds)


def limit_s(ctx: StageContext, tokens: int) -> float:
    """How long a sample of so many tokens may take."""
    return ctx.spec.extract.request_timeout_s + tokens / ctx.spec.extract.slowest_tok_s


async def request(client: Completions, server: ExtractionServer, sample: Row, limit_s: float) -> Path:
    """The file that the server names for a sample's states. Raises RequestFailed, StageError where no sample would get one, or
    where the file is none that this server may hand over."""
    body = {"model": server.model, "prompt": sample["input_ids"], "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    reply = await client.post("/v1/completions", body, timeout_s=limit_s)
    handle = (reply.get("kv_transfer_params") or {}).get("hidden_states_path")
    if not handle:
        raise StageError(
            "The server answers but names no file of hidden states, so it is not in extraction mode; "
            "look in its log for the connector."
        )
    try:
        return handed_by(server).named(handle)
    except NotItsFile as error:
        raise StageError(str(error)) from error


def handed_by(server: ExtractionServer) -> Handed:
    """What the server may hand over."""
    assert server.handed is not None, "a server in extraction mode says where its files lie"
    return server.handed


async def written(handed: Handed, raw: Path, *, limit_s: float = _LOCK_PATIENCE_S) -> None:
    """Wait until the server has written the file. Raises StateError where it does not, StageError where what lies there is no
    file of its own."""
    deadline, pause_s = time.monotonic() + limit_s, _LOOK_FIRST_S
    try:
        while not handed.there(raw):
            if time.monotonic() > deadline:
                raise StateError(f"the server has not written {raw.name} within {limit_s:.0f} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MOST_S)
    except NotItsFile as error:
        raise StageError(str(error)) from error


def _words(change: Change) -> str:
    if change.after > change.before:
        return f"The server answers in time again: {change.after} requests in flight."
    return (
        f"The server answers late: 95 % of the last requests took up to {1000 * change.p95_s:.1f} ms a token, "
        f"{change.p95_s / change.median_s:.1f} times the first ones' median; {change.after} requests in flight instead of "
        f"{change.before}."
    )
