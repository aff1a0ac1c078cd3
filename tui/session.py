"""The one owner of the connection. It turns what the container says into messages and what the operator asks into
calls; no widget ever waits for the wire.

The session lives as long as the app, not as long as a screen. The container keeps its link up by itself; the session
keeps asking. Everything runs in tasks that ``close`` cancels, and an error nobody expected is told like any other:
it never ends the console.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from textual.message import Message

from eagle3.core.records import LogFile, LogPage, LogSearch
from remote.ask import Ask, SecretQuestion
from remote.errors import ContainerError, LinkError, NoPython
from tui import messages
from tui.formats import one_line
from tui.ports import Connect, ContainerPort, LinkView, StopMode
from tui.readiness_calls import ReadinessCalls, sentence
from tui.reading import LogAsk
from tui.run_secrets import SecretError, started_with, values_of
from tui.state import LinkState, RunView

if TYPE_CHECKING:
    from eagle3.core.spec import RunSpec
    from tui.forking import Fork

FOLLOW_S = 1.0
"""Seconds between two reads of the open run."""
FOLLOW_LATE_S = 3.0
"""A followed run brings the probes along; only where one is so late is it asked for alone."""
FOLLOWING = "Following the run"
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
LAUNCH_TRIES = 20
CLOSE_LIMIT_S = 4.0


class Session(ReadinessCalls):
    """``post`` takes messages (the app's ``post_message``); ``clock`` gives this machine's Unix seconds; ``preload`` loads, in
    a thread so that the first seconds of the console stay alive, first what ``connect`` needs, and after the first answer
    what the operator's keys will need."""

    def __init__(
        self,
        connect: Connect,
        *,
        post: Callable[[Message], object],
        ask: Ask,
        clock: Callable[[], float],
        workspace: str,
        poll_s: float = 5.0,
        actor: str = "",
        preload: Sequence[Callable[[], object]] = (),
        read_only: bool = False,
    ) -> None:
        self._connect, self._post, self._ask, self._clock = connect, post, ask, clock
        self._poll_s, self._actor, self._preload = poll_s, actor, preload
        self.workspace = workspace
        self.read_only = read_only
        self.read_only_words = "this console is read-only; nothing was changed."
        self._go = asyncio.Event()
        self._go.set()
        self._container: ContainerPort | None = None
        self._opened = asyncio.Event()
        self._wake = asyncio.Event()
        self._probe_due = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._secrets: dict[str, dict[str, str]] = {}
        """Of each run launched or resumed here: name → value. In memory only, so that a resume need not ask again."""

    def start(self) -> None:
        """Connect, and go on probing for as long as the console lives."""
        self._spawn("Connecting", self._run())

    def move(self, workspace: str) -> None:
        """Look at another workspace of the same host from now on: a new connection, since the helper lives in it."""
        if workspace != self.workspace:
            self.workspace = workspace
            self._opened.clear()
            self._spawn("Connecting", self._run())

    @property
    def actor(self) -> str:
        """In whose name things are asked."""
        return self._actor

    @property
    def held(self) -> bool:
        """Whether the container is not asked for news at the moment."""
        return not self._go.is_set()

    def hold(self, held: bool) -> None:
        """Ask for no news (``held``), or go on. The link stays up, and what the operator asks for is still asked."""
        if held:
            self._go.clear()
        else:
            self._go.set()
            self._wake.set()

    def reconnect(self) -> None:
        """Dial now, and let the login ask what it has to ask."""
        if self._container is not None:
            self._container.reconnect()
        self._wake.set()

    def follow(self, run_id: str) -> None:
        """Follow this run, and no other."""
        self._spawn(FOLLOWING, self._follow(run_id))

    def unfollow(self) -> None:
        """Follow no run: nobody looks at it at the moment."""
        if task := self._tasks.get(FOLLOWING):
            task.cancel()

    def pace(self, poll_s: float) -> None:
        """Seconds between two probes from now on; a shorter pace begins with one."""
        sooner, self._poll_s = poll_s < self._poll_s, poll_s
        if sooner:
            self._probe_due = 0.0
            self._wake.set()

    def launch(
        self, spec: RunSpec, run_id: str, secrets: Mapping[str, str] | None = None, *, report: dict[str, Any] | None = None
    ) -> None:
        """Launch; the run keeps ``report``, the readiness that it was started under. ``run_id`` makes asking again harmless,
        so a broken link is waited out and asked again. ``secrets`` go into the worker's environment."""
        self._secrets[run_id] = dict(secrets or {})
        self._change("Launching", self._launch(spec, run_id, False, report))

    def ask_forkable(self, run_id: str) -> None:
        """Ask what there is of a run to fork from."""
        self._spawn("Looking what can be forked", self._forkable(run_id))

    def fork(
        self, fork: Fork, new_id: str, secrets: Mapping[str, str] | None = None, *, report: dict[str, Any] | None = None
    ) -> None:
        """Make the run ``new_id`` out of what another one has, then launch it; asking again is harmless, as with `launch`."""
        self._secrets[new_id] = dict(secrets or {})
        self._change("Launching", self._launch(fork.spec, new_id, False, report, fork))

    def add_note(self, run_id: str, line: str) -> None:
        """Add one line to the notes of a run, or of the workspace with ""."""
        self._change(f"Adding a note to {run_id or 'the workspace'}", self._add_note(run_id, line))

    def resume(self, run_id: str) -> None:
        """Go on with a run under the spec that it was started with."""
        self._change("Launching", self._resume(run_id))

    def stop(self, run_id: str, mode: StopMode) -> None:
        """Stop a run: "now" or "after-checkpoint"."""
        self._change("Stopping", self._stop(run_id, mode))

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

    def control(self, run_id: str, action: Literal["pause", "go-on", "checkpoint"]) -> None:
        """Hold a run, let it go on, or have it save now."""
        self._change(f"Asking {run_id} to {action}", self._control(run_id, action))

    def dump(self, run_id: str) -> None:
        """Have the run write the stacks of its processes into its log."""
        self._change(f"Asking {run_id} for its stacks", self._dump(run_id))

    def complete(self, run_id: str) -> None:
        """Bring all rows of a run whose picture is thinned."""
        self._spawn("Reading all rows", self._complete(run_id))

    def ask_services(self) -> None:
        """Ask for the vLLM servers with their command lines and environments."""
        self._spawn("Asking for the servers", self._services())

    def ask_since(self, ago_s: float, container_now: float) -> None:
        """Ask what happened in the last ``ago_s`` seconds, by the container's clock."""
        self._spawn("Looking back", self._since(ago_s, container_now))

    def aside(self, what: str, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        """Do ``work`` in a thread, and ``then`` here with what it gave."""

        async def done() -> None:
            then(await asyncio.to_thread(work))

        self._spawn(what, done())

    def secret_values(self) -> list[str]:
        """The secrets of runs that were launched or resumed from here."""
        return [value for known in self._secrets.values() for value in known.values()]

    async def close(self) -> None:
        """End every task and the connection; runs go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop()

    async def _drop(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            with contextlib.suppress(LinkError, ContainerError, TimeoutError):  # going away: nobody is left to tell
                await asyncio.wait_for(container.close(), CLOSE_LIMIT_S)

    def _change(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """As `_spawn`, for what changes something: never done by a console that may only look."""
        if self.read_only:
            work.close()
            self._post(messages.AskFailed(what, self.read_only_words))
        else:
            self._spawn(what, work)

    def _spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        if old := self._tasks.get(what):
            old.cancel()
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        self._tasks[what] = asyncio.create_task(self._guard(what, work), name=f"session: {what}")

    async def _guard(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told to the operator, with its kind; the console goes on
            text = f"the console met an error of its own: {type(error).__name__}: {error}"
            self._post(messages.AskFailed(what, one_line(text)))

    def _link_changed(self, link: LinkView) -> None:
        self._post(messages.LinkChanged(LinkState.of(link)))
        if link.status == "up":
            self._wake.set()

    async def _run(self) -> None:
        self._post(messages.LinkChanged(LinkState("connecting", self._clock())))
        for load in self._preload[:1]:
            await asyncio.to_thread(load)
        await self._drop()
        try:
            self._container = self._connect(self._link_changed, self._ask, self.workspace)
        except ContainerError as error:
            # What was asked for cannot be dialled at all: a mistake in the host or the workspace.
            self._post(messages.LinkChanged(LinkState("refused", self._clock(), sentence(error))))
            return
        try:
            await self._container.open(persist=True)
        except (LinkError, ContainerError) as error:
            if isinstance(error, NoPython):
                self._post(messages.BareProbeArrived(error.probe, self._clock()))
            self._post(messages.ProbeFailed(sentence(error)))
        self._opened.set()
        loads = list(self._preload[1:])
        while True:
            await self._go.wait()
            await self._probe(self._container)
            while loads:
                await asyncio.to_thread(loads.pop(0))
            await self._until_probe_due()

    async def _until_probe_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._wake.is_set() and (left_s := self._probe_due - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):  # the usual end of a pause; the news may have moved the next one on
                await asyncio.wait_for(self._wake.wait(), left_s)
        self._wake.clear()

    async def _probe(self, container: ContainerPort) -> None:
        try:
            probe = await container.probe()
        except (LinkError, ContainerError) as error:
            self._post(messages.ProbeFailed(sentence(error)))
        else:
            self._post(messages.ProbeArrived(probe, self._clock()))
        self._probe_due = asyncio.get_running_loop().time() + self._poll_s

    async def _ready(self) -> ContainerPort:
        await self._opened.wait()
        assert self._container is not None
        return self._container

    async def _follow(self, run_id: str) -> None:
        tries = 0
        while True:
            fresh = True
            # Asked for at each try: another workspace brings another container.
            container = await self._ready()
            try:
                async for news in container.follow(run_id, poll_s=FOLLOW_S, probe_s=self._poll_s):
                    tries = 0
                    if news.probe is not None:
                        self._post(messages.ProbeArrived(news.probe, self._clock()))
                        self._probe_due = asyncio.get_running_loop().time() + self._poll_s + FOLLOW_LATE_S
                    self._post(messages.NewsArrived(run_id, news, self._clock(), fresh))
                    fresh = False
                    await self._go.wait()
                return
            except (LinkError, ContainerError) as error:
                self._post(messages.FollowFailed(run_id, sentence(error)))
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    async def _control(self, run_id: str, action: Literal["pause", "go-on", "checkpoint"]) -> None:
        container = await self._ready()
        try:
            answer = await container.control(run_id, action, self._actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Asking {run_id} to {action}", sentence(error)))
            return
        words = {"pause": "pauses after the work under way", "go-on": "goes on", "checkpoint": "saves after the step under way"}
        if action == "checkpoint" and answer.get("stage") != "train":
            words["checkpoint"] = "does not train at the moment; what is finished is on disk"
        self._post(messages.Asked(run_id, f"{run_id} {words[action]}."))
        self._wake.set()

    async def _dump(self, run_id: str) -> None:
        container = await self._ready()
        try:
            answer = await container.dump(run_id, self._actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Asking {run_id} for its stacks", sentence(error)))
        else:
            said = one_line(str(answer.get("text") or "The stacks are in its log."))
            self._post(messages.Asked(run_id, f"{run_id}: {said}"))

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
        container = await self._ready()
        try:
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
        container = await self._ready()
        answer: list[LogFile] | LogPage | LogSearch | int
        try:
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
        container = await self._ready()
        try:
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
                async with contextlib.aclosing(container.follow(run_id, poll_s=FOLLOW_S)) as following:
                    async for news in following:
                        view.take(news, self._clock())
                        if not news.more:
                            break
                spec_toml = (await container.read_text(run_id, "spec.toml"))["spec.toml"] or ""
            except (LinkError, ContainerError) as error:
                self._post(messages.RunCollected(run_id, None, problem=sentence(error)))
            else:
                self._post(messages.RunCollected(run_id, view, spec_toml))

    async def _forkable(self, run_id: str) -> None:
        container = await self._ready()
        try:
            self._post(messages.ForkableArrived(run_id, await container.forkable(run_id)))
        except (LinkError, ContainerError) as error:
            self._post(messages.ForkableArrived(run_id, None, sentence(error)))

    async def _add_note(self, run_id: str, line: str) -> None:
        container = await self._ready()
        try:
            await container.add_note(line, run_id)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed("Adding the note", f"{sentence(error)} It was: {line}"))
        else:
            self._post(messages.Asked(run_id, "The note is in NOTES.md."))

    async def _launch(
        self, spec: RunSpec, run_id: str, resume: bool, report: dict[str, Any] | None = None, fork: Fork | None = None
    ) -> None:
        container = await self._ready()
        what = f"{'Resuming' if resume else 'Launching'} {run_id}"
        for tries in range(LAUNCH_TRIES):
            try:
                if fork is not None:
                    await container.fork(fork.parent, run_id, spec, fork.plan, self._actor)
                secrets = self._secrets.get(run_id, {})
                ack = await container.launch(spec, run_id, self._actor, resume=resume, report=report, secret_env=secrets)
            except LinkError as error:
                if error.kind == "refused" or tries == LAUNCH_TRIES - 1:
                    self._post(messages.AskFailed(what, sentence(error)))
                    return
                if tries == 0:
                    self._post(messages.AskAgain(what, sentence(error)))
                await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            except ContainerError as error:
                self._post(messages.AskFailed(what, sentence(error)))
                return
            else:
                self._post(messages.Launched(run_id, ack, resume))
                self._wake.set()
                return

    async def _resume(self, run_id: str) -> None:
        from eagle3.core.spec import RunSpec  # not before the first picture

        container = await self._ready()
        what = f"Resuming {run_id}"
        try:
            files = await container.read_text(run_id, "spec.toml", "launch.json")
            spec = RunSpec.from_toml(files["spec.toml"] or "")
            await self._ask_for_secrets(run_id, started_with(files["launch.json"]))
        except SecretError as error:
            self._post(messages.AskFailed(what, str(error)))
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(what, sentence(error)))
        except ValueError as error:
            self._post(messages.AskFailed(what, one_line(f"its spec.toml cannot be read by this console ({error}).", 300)))
        else:
            await self._launch(spec, run_id, True)

    async def _ask_for_secrets(self, run_id: str, names: Sequence[str]) -> None:
        """Have the values of ``names``: those of its launch here, and the others as a person types them. The names come from
        the container, so this environment is not looked at."""

        async def ask(name: str) -> str | None:
            return await self._ask.secret(SecretQuestion("", name, run_id=run_id)) if self._ask.secret else None

        known = self._secrets.get(run_id, {})
        self._secrets[run_id] = {**known, **await values_of([name for name in names if name not in known], ask, {})}

    async def _stop(self, run_id: str, mode: StopMode) -> None:
        container = await self._ready()
        try:
            await container.stop(run_id, mode, self._actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Stopping {run_id}", sentence(error)))
        else:
            self._post(messages.Stopping(run_id, mode))
            self._wake.set()
