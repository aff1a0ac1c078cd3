"""The facade: everything that the console and the command line ask of a container.

Importing it is cheap (no SSH library); the first `Container.open` loads the rest. Every method ends within a limit with an
answer, a `LinkError` (nothing is known about the run) or a `ContainerError` (the container said no).
"""

from __future__ import annotations

import asyncio
import getpass
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3.core.launching import launch_request
from eagle3.core.records import GpuReport, Probe, RunSummary
from eagle3.core.spec import RunSpec
from eagle3.runner.delta import Held
from eagle3.runner.redact import redact
from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from remote.bare import in_sh
from remote.bootstrap import check_workspace, run_quietly
from remote.channel import Reply
from remote.deepcheck import Told
from remote.errors import EXIT_CODES, ContainerError, LinkError
from remote.facade_part import READ_LIMIT_S, shaped
from remote.follow import ENDED_STATES, METRICS, Backlog, Follower, RunNews, Thinned, taken_probe
from remote.line import Line, LocalDial, dial_host
from remote.link import Link, LinkKeeper
from remote.readiness import ReadinessAsks
from remote.run_actions import RunActions
from remote.run_texts import RunTexts
from remote.settings import Settings
from remote.text import plain

__all__ = [
    "EXIT_CODES", "Ask", "Backlog", "Container", "ContainerError", "HostKeyQuestion", "Link", "LinkError", "Output",
    "RunNews", "SecretQuestion", "Settings", "Thinned", "Told", "redact",
]  # fmt: skip

CHUNK_BYTES = 1 << 20
"""What one reply brings where everything is read."""
PROBE_LIMIT_S = 30.0
LAUNCH_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
COLLECT_LIMIT_S = 60.0


@dataclass(frozen=True)
class Output:
    """What a command in the container printed, as text. ``code`` is None where a signal ended it."""

    code: int | None
    out: str
    err: str


class Container(RunActions, RunTexts, ReadinessAsks):
    """One container, over one SSH connection that is kept up. Made anew for another host or workspace.

    ``host`` is what one would give ``ssh`` (``ssh://user@host:port`` too), ignored with ``local``. ``python`` runs
    the helper there (3.8 or newer) and is also the default ``worker_python``; None: this interpreter with ``local``, else
    ``python3``. With ``probe_first`` each connection brings the first probe along, which saves a round trip for whoever
    asks for it next. ``on_link`` is called in the event loop with each change of `link`. Raises ContainerError(usage) for a
    workspace that is neither absolute nor under the home.
    """

    def __init__(
        self,
        host: str = "",
        *,
        local: bool = False,
        workspace: str = "~/eagle3",
        python: str | None = None,
        probe_first: bool = False,
        ask: Ask | None = None,
        on_link: Callable[[Link], None] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.host = "this machine" if local else host
        self.local = local
        self.workspace = check_workspace(workspace)
        self.python = python or (sys.executable if local else "python3")
        self.on_link = on_link
        settings = settings or Settings()
        self._local_dial = LocalDial(settings) if local else None
        first = {"workspace": self.workspace, "probe": {}} if probe_first else None
        self._line = Line(self._local_dial or dial_host(host, settings), self.python, self.workspace, first)
        self._held = Held()
        self._keeper = LinkKeeper(self._line, self.host, ask or Ask(), settings, self._tell)

    @property
    def link(self) -> Link:
        return self._keeper.link

    @property
    def rtt_s(self) -> float | None:
        """Seconds that the last ping took, None before the first."""
        return self._keeper.rtt_s

    @property
    def info(self) -> dict[str, Any]:
        """The helper's greeting: version, python, pid, user, host, home. Empty before `open`."""
        return self._line.info

    @property
    def uploads(self) -> int:
        """How often this object had to send the helper."""
        return self._line.uploads

    async def open(self, *, persist: bool = False) -> None:
        """Connect, installing the helper if it is not there. With ``persist`` a host that cannot be reached is dialled
        on in the background although this call raises. Raises LinkError, ContainerError."""
        await self._keeper.open(persist)

    def reconnect(self) -> None:
        """Dial now: after a refusal, or where the login needs a person. Questions come through ``ask``."""
        self._keeper.reconnect()

    def watch(self, run_id: str) -> None:
        """Say from now on, to whoever else looks at the workspace, that this run is looked at here: also one that has ended,
        about which nothing is asked any more. Empty: the workspace alone."""
        self._line.presence["watching"] = run_id

    async def close(self) -> None:
        """End the helper and the connection. Runs go on."""
        await self._keeper.close()
        if self._local_dial is not None:
            await self._local_dial.close()

    async def __aenter__(self) -> Container:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def probe(self, paths: Sequence[str] = (), urls: Sequence[str] = ()) -> Probe:
        """GPUs, disks (of the workspace and ``paths``), vLLM servers (found, and at ``urls``) and runs, in one round trip;
        more only where a driver there takes its time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PROBE_LIMIT_S
        reply = await self._line.early_reply() if not (paths or urls) else None
        while True:
            if reply is None:
                question = {"paths": list(paths), "urls": list(urls), "held": self._held.token}
                watching = self._line.presence.get("watching", "")
                args = {"workspace": self.workspace, "probe": question, "watching": watching}
                reply = await self._call("poll", args, max(0.0, deadline - loop.time()))
            answer, reply = reply.result.get("probe"), None
            if answer is not None and not self._held.fits(answer):
                # Another probe came between: ask for all of it.
                self._held.forget()
            elif (found := shaped(lambda a=answer: taken_probe(self._held, a), "poll")) is not None:  # type: ignore[misc]
                return found

    async def runs(self) -> list[RunSummary]:
        """The runs of the workspace, as the runner derives them at this moment."""
        reply = await self._call("list", {"workspace": self.workspace}, READ_LIMIT_S)
        return shaped(lambda: [RunSummary.model_validate(run) for run in reply.result.get("runs", [])], "list")

    async def gpu(self) -> GpuReport:
        reply = await self._call("gpu", {}, READ_LIMIT_S)
        return shaped(lambda: GpuReport.model_validate(reply.result), "gpu")

    async def launch(
        self,
        spec: RunSpec,
        run_id: str,
        actor: str = "",
        resume: bool = False,
        *,
        report: dict[str, Any] | None = None,
        secret_env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Start a run, or find that ``run_id`` is started already: ``already`` in the answer says which. Safe to repeat.
        With ``resume`` the next attempt of an ended run.

        ``report`` is the readiness report that the run was started under; ``secret_env`` goes into the worker's
        environment and nowhere else. The spec's workspace is this container's.
        """
        spec, request = await self._launch_request(spec)
        args: dict[str, Any] = {
            "workspace": self.workspace,
            "run_id": run_id,
            "spec_toml": spec.to_toml(),
            # By name only, so that a resume can ask for them; launch.json is a file.
            "launch": {**request, "secret_env": sorted(secret_env or {})},
            "report": report,
            "actor": actor or getpass.getuser(),
            "resume": resume,
            "secret_env": dict(secret_env or {}),
        }
        if resume:
            # Naming the attempt makes the resume as safe to repeat as the launch.
            summary = await self.summary(run_id)
            args["attempt"] = summary.attempt + (summary.state in ENDED_STATES)
        return (await self._call("launch", args, LAUNCH_LIMIT_S)).result

    async def _launch_request(self, spec: RunSpec) -> tuple[RunSpec, dict[str, Any]]:
        """The spec as this container's, and what its runner needs of it."""
        # Where the package lies there is known only once the helper has answered.
        await self._keeper.channel(LAUNCH_LIMIT_S)
        spec = spec.model_copy(update={"workspace": self.workspace})
        return spec, launch_request(spec, default_python=self.python, pythonpath=self._line.site)

    async def summary(self, run_id: str) -> RunSummary:
        """One run's state at this moment. Raises ContainerError(not_found)."""
        reply = await self.read(run_id, [])
        return shaped(lambda: RunSummary.model_validate(reply.result["summary"]), "read")

    async def read(self, run_id: str, files: Sequence[Mapping[str, Any]]) -> Reply:
        """Increments of a run's files: ``files`` as the verb ``read`` takes them (name, token, max_bytes, whole)."""
        return await self._call("read", self._of(run_id, files=[dict(file) for file in files]), READ_LIMIT_S)

    async def read_text(self, run_id: str, *names: str) -> dict[str, str | None]:
        """Whole small files of a run (``spec.toml``, ``NOTES.md``, ``stages/train.json`` …) as text; None: not there."""
        reply = await self.read(run_id, [{"name": name, "whole": True} for name in names])
        parts = reply.result.get("files", {})
        return {name: None if parts.get(name, {"missing": True}).get("missing") else plain(parts[name]["text"]) for name in names}

    async def follow(self, run_id: str, poll_s: float = 1.0, probe_s: float | None = None) -> AsyncGenerator[RunNews, None]:
        """News of a run, from its beginning until it has ended and everything it left has been told.

        A long backlog comes thinned (`RunNews.thinned`), a long log from near its end, everything new whole. Each poll is
        one round trip and brings what has changed; every ``probe_s`` seconds it brings the container too. A lost link is
        waited out: `link` tells of it, and following goes on where it was. Raises ContainerError (there is no such run)
        and LinkError only where nobody dials any more.
        """
        loop = asyncio.get_running_loop()
        follower = Follower()
        ended = False
        probe_due = loop.time()
        while True:
            begun = loop.time()
            wanted: dict[str, Any] | None = {} if probe_s is not None and loop.time() >= probe_due else None
            try:
                reply = await self._call("poll", self._of(run_id, **follower.request(wanted)), READ_LIMIT_S)
            except LinkError as error:
                if error.kind in ("refused", "unreachable"):
                    raise
                await asyncio.sleep(min(poll_s, 1.0))
                continue
            news = shaped(lambda r=reply: follower.apply(r.result, r.now), "poll")  # type: ignore[misc]
            if news.probe is not None and probe_s is not None:
                probe_due = loop.time() + probe_s
            yield news
            if news.more:
                continue
            if ended and news.summary.state in ENDED_STATES:
                return
            # The state may be newer than the files that came with it, so an ended run is read once more.
            ended = news.summary.state in ENDED_STATES
            if not ended:
                await asyncio.sleep(max(0.0, begun + poll_s - loop.time()))

    async def complete(self, run_id: str) -> AsyncGenerator[Backlog, None]:
        """All rows that the run has by now, in pieces, each with how far reading has come: what a thinned picture left out."""
        token: dict[str, Any] | None = None
        unreadable = 0
        while True:
            reply = await self.read(run_id, [{"name": METRICS, "token": token, "max_bytes": CHUNK_BYTES}])
            piece = shaped(lambda r=reply, n=unreadable: Backlog.of(r.result["files"][METRICS], n), "read")  # type: ignore[misc]
            token, unreadable = piece.token, piece.unreadable
            yield piece
            if not piece.more:
                return

    async def stop(
        self, run_id: str, mode: Literal["now", "after-checkpoint"] = "now", actor: str = "", grace_s: float | None = None
    ) -> dict[str, Any]:
        """Ask a run to stop; what was found and done is in the answer. Safe to repeat."""
        args: dict[str, Any] = {"workspace": self.workspace, "run_id": run_id, "mode": mode, "actor": actor or getpass.getuser()}
        if grace_s is not None:
            args["grace_s"] = grace_s
        return (await self._call("stop", args, STOP_LIMIT_S + (grace_s or 30.0))).result

    async def collect(self, run_id: str) -> dict[str, Any]:
        """What of a run may go into a bug report, redacted there: ``files``, ``left_out``, ``versions``, ``summary``."""
        return (await self._call("collect", {"workspace": self.workspace, "run_id": run_id}, COLLECT_LIMIT_S)).result

    async def http(self, url: str, timeout_s: float = 5.0) -> dict[str, Any]:
        """GET a URL of the container's own loopback, so that no port needs forwarding."""
        return (await self._call("http", {"url": url, "timeout_s": timeout_s}, timeout_s + 5.0)).result

    async def eagle3(self, *arguments: str, python: str = "", limit_s: float = 120.0) -> Output:
        """Run the headless command there (``check --json`` …) with the uploaded package. ``python`` is the spec's
        worker_python; empty: the default. Raises LinkError; the command's own failure is its ``code``."""
        await self._keeper.channel(READ_LIMIT_S)
        assert self._line.connection is not None
        words = " ".join(map(shlex.quote, arguments))
        command = f"env PYTHONPATH={shlex.quote(self._line.site)} {in_sh(python or self.python)} -m eagle3 {words}"
        output = await run_quietly(self._line.connection, command, limit_s)
        return Output(output.code, plain(output.out.decode("utf-8", "replace")), plain(output.err.decode("utf-8", "replace")))

    async def ask(self, verb: str, args: Mapping[str, Any], limit_s: float = READ_LIMIT_S) -> Reply:
        """Any verb of the helper, as it is. Raises LinkError, ContainerError."""
        return await self._call(verb, dict(args), limit_s)

    async def _call(self, verb: str, args: dict[str, Any], limit_s: float) -> Reply:
        """Every verb is safe to repeat, launch by its run_id: after a reconnect it is asked again within the same limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while True:
            channel = await self._keeper.channel(deadline - loop.time())
            try:
                return await channel.request(verb, args, deadline - loop.time())
            except LinkError as error:
                if error.kind != "lost" or loop.time() >= deadline:
                    raise

    async def _connected(self, limit_s: float) -> None:
        await self._keeper.channel(limit_s)

    def _tell(self, link: Link) -> None:
        if self.on_link is not None:
            self.on_link(link)
