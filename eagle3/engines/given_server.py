"""A vLLM that is there already: asked first whether it can do what the stage needs, used with courtesy, never stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from eagle3.core.courtesy import Courtesy
from eagle3.engines import asking_given
from eagle3.engines.deaths import Deaths
from eagle3.engines.prometheus import Buckets, Counters, p95, parse_buckets, parse_counters
from eagle3.engines.server import STAGE_OF, Result, ServerDied, ServerKind, unexplained
from eagle3.engines.watching import Watch, local_client
from eagle3.runner.handed import Handed
from eagle3.stages.context import StageContext, StageError

_FIRST_TOKEN = "vllm:time_to_first_token_seconds"
_POLL_S = 0.5


class GivenServer:
    """Context manager: on entry the server at ``url`` has been asked whether it can serve as ``name``; on exit it runs on.

    When it stops answering, the stage waits for it as long as a server may load, for whoever owns it may start it again.
    ``concurrency``: the most requests that the run would keep in flight. ``stage`` is whose progress says that it is waited for;
    by default it follows from ``name``. Attributes: see ``engines.server.Server``.

    Raises StageError on entry when it does not answer, offers another model, is too old or is of the other kind.
    """

    def __init__(self, ctx: StageContext, name: ServerKind, url: str, *, concurrency: int, stage: str | None = None) -> None:
        self.ctx = ctx
        self.name = name
        self.model = ctx.spec.target.served_name
        self.base_url = url
        self.log_path = ctx.path("logs", f"server-{name}.log")
        self.start_s = 0.0
        self.pid = 0
        self.handed: Handed | None = None
        self._concurrency = concurrency
        self._watch: Watch | None = None
        self._courtesy = Courtesy(concurrency, ctx.spec.server.latency_factor)
        self._buckets: Buckets = {}
        self._said: list[str] = []
        self._stage = stage or STAGE_OF[name]
        self._died = Deaths(ctx, name, self._stage)

    def __enter__(self) -> Self:
        # A cold model may take as long for its first answer as for any.
        answer_s = self.ctx.spec.regenerate.request_timeout_s
        self.ctx.journal.progress(self._stage, 0, None, "", quiet_s=3 * answer_s, reason=f"asking the vLLM at {self.base_url}")
        with self.client() as http:
            about = asking_given.ask(self.ctx, self.name, self.base_url, http)
            self._buckets = self._read_buckets(http)
        self.pid, self.handed = about.pid, about.handed
        self._courtesy = Courtesy(self._concurrency, self.ctx.spec.server.latency_factor, p95(self._buckets, {}))
        self.ctx.journal.event(
            "server", f"The {self.name} server is {about.words}; it is not the run's own and is never stopped."
        )
        self.ctx.journal.restart_rate()
        self._begin_watch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end_watch()

    def check_alive(self) -> None:
        """Raise ServerDied when it answers nothing any more. Tells as well where the run holds back."""
        while self._said:
            self.ctx.journal.event("shared-server", self._said.pop(0))
        if self._watch is not None and self._watch.dead:
            raise ServerDied(f"The vLLM at {self.base_url} answers nothing any more: {self._watch.dead}.")

    def counters(self) -> Counters:
        """What ``/metrics`` says now; see ``engines.server.Server``."""
        with self.client() as http:
            try:
                return parse_counters(http.get("/metrics").raise_for_status().text)
            except httpx.HTTPError as error:
                self.check_alive()
                raise StageError(
                    f"The vLLM at {self.base_url} does not answer /metrics ({error or type(error).__name__})."
                ) from error

    def client(self) -> httpx.Client:
        """A client of one's own to this server; the caller closes it."""
        return local_client(self.base_url)

    def limit(self) -> int:
        """Requests that may be in flight now, so that the others who use the server do not suffer."""
        return self._courtesy.limit

    def surviving(self, work: Callable[[], Result], died: Callable[[], bool] = unexplained) -> Result:
        """Do ``work``; where the server went silent, wait for it and do it again. See ``engines.server.Server``."""
        while True:
            try:
                return work()
            except ServerDied as death:
                self._died.judge(died)
                self._wait(death)

    def _wait(self, death: ServerDied) -> None:
        settings = self.ctx.spec.server
        self._end_watch()
        found, waits = f"{death} It is not the run's own, so it is not started here", self._died.one_more()
        if waits > settings.restarts or self.ctx.spec.guards.server == "stop":
            raise self._died.stop(f"{found}: start it.", waits, settings.restarts) from death
        action = f"The run waits for it, {settings.start_timeout_s:.0f} s at most: start it meanwhile."
        if self._died.tell(f"{found}.", action, waits, settings.restarts):
            self._died.hold()
        deadline = time.monotonic() + settings.start_timeout_s
        quiet_s = settings.start_timeout_s + 3 * self.ctx.spec.regenerate.request_timeout_s
        self.ctx.journal.waits(self._stage, f"waiting for the vLLM at {self.base_url}, which others start", quiet_s)
        with self._died.away():
            while True:
                self.ctx.check_stop()
                with self.client() as http:
                    try:
                        about = asking_given.ask(self.ctx, self.name, self.base_url, http)
                        self.pid, self.handed = about.pid, about.handed
                        break
                    except asking_given.Silent:
                        if time.monotonic() > deadline:
                            raise self._died.stop(f"{found}: start it.", waits, settings.restarts) from death
                time.sleep(_POLL_S)
        self._buckets = {}
        self.ctx.journal.restart_rate()
        self._begin_watch()

    def _begin_watch(self) -> None:
        silent_s = self.ctx.spec.server.silent_timeout_s
        self._watch = Watch(self.base_url, silent_s=silent_s, on_metrics=self._take)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _take(self, text: str) -> None:
        now, before = parse_buckets(text, _FIRST_TOKEN), self._buckets
        self._buckets = now
        if said := self._courtesy.take(p95(now, before)):
            self._said.append(said)

    def _read_buckets(self, http: httpx.Client) -> Buckets:
        try:
            return parse_buckets(http.get("/metrics").text, _FIRST_TOKEN)
        except (httpx.HTTPError, ValueError) as error:
            raise StageError(f"The vLLM at {self.base_url} shows no metrics ({error or type(error).__name__}).") from error
