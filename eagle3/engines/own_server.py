"""A server that belongs to one stage of one run: started, watched, started again when it dies, and always gone afterwards.

``/health`` alone proves little: a busy port, port 0 and a server that dies while loading all look alike from there, so
the process is watched too. What runs inside is a subclass's: vLLM, or transformers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from eagle3.core.serving import device_environment
from eagle3.engines.deaths import Deaths
from eagle3.engines.ports import claim_port
from eagle3.engines.process_tree import end_tree
from eagle3.engines.prometheus import Counters, parse_counters
from eagle3.engines.server import STAGE_OF, Result, ServerDied, ServerKind, unexplained
from eagle3.engines.server_log import last_error, tail
from eagle3.engines.watching import Watch, local_client
from eagle3.runner import redact, rundir
from eagle3.runner.handed import Handed
from eagle3.stages.context import StageContext, StageError

_POLL_S = 0.1
_LONGEST_PAUSE_S = 600.0
_LATE_DEATH_S = 1.0
"""A connection breaks a moment before the process is seen to have ended."""


class OwnServer:
    """Context manager: on entry the server answers and lists the target; on exit its whole process tree is gone.

    ``name`` is the kind of server and the name of its log (``logs/server-<name>.log``) and of its record
    (``servers/<name>.json``, there while it runs). ``extra_args`` follow the server's own arguments; ``env`` wins over the
    spec's. ``states``: the folder for hidden states, in the kind "extract". ``stage`` is whose progress says that a model is
    loading, and whose devices are used; by default it follows from ``name``. ``meanwhile`` is called again and again while it
    loads, and ends the start by raising. Attributes: see ``engines.server.Server``.

    Raises StageError on entry when the port is taken, the interpreter is missing, the server dies while loading or does not
    answer within ``server.start_timeout_s``; Stopped when the operator asks for a stop meanwhile.
    """

    what = "vLLM"

    def __init__(
        self,
        ctx: StageContext,
        name: ServerKind = "plain",
        *,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        pythonpath: Path | None = None,
        states: Path | None = None,
        stage: str | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ctx = ctx
        self._meanwhile = meanwhile
        self.name = name
        self.model = ctx.spec.target.served_name
        self.log_path = ctx.path("logs", f"server-{name}.log")
        self.base_url = ""
        self.start_s = 0.0
        self.pid = 0
        self._extra_args = list(extra_args)
        self._env = dict(env or {})
        self._pythonpath = pythonpath
        self.handed = Handed(states, self._who, remedy=f"its log is {self.log_path}") if states is not None else None
        self._stage = stage or STAGE_OF[name]
        self._record = ctx.path("servers", f"{name}.json")
        self._process: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None
        self._claim: socket.socket | None = None
        self._sockets: tempfile.TemporaryDirectory[str] | None = None
        self._watch: Watch | None = None
        self._died = Deaths(ctx, name, self._stage, clock=clock)

    # ------------------------------------------------------------------ what a subclass says

    def python(self) -> str:
        """The interpreter that it runs in."""
        raise NotImplementedError

    def arguments(self, port: int) -> list[str]:
        """What the interpreter is told."""
        raise NotImplementedError

    def own_environment(self) -> dict[str, str]:
        """What this kind of server needs of its environment; the worker's own and the spec's win over it."""
        return {}

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        began = time.monotonic()
        port, self._claim = claim_port(self.ctx.spec.server.port)
        self.base_url = f"http://127.0.0.1:{port}"
        self._http = local_client(self.base_url)
        # vLLM leaves the sockets of its inner talk behind; the system's folder, since a socket's path must be short.
        self._sockets = tempfile.TemporaryDirectory(prefix="eagle3-", ignore_cleanup_errors=True)
        try:
            self._spawn(port)
            self._wait_until_ready(began)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began
        self._watch = Watch(self.base_url, silent_s=self.ctx.spec.server.silent_timeout_s)
        self.ctx.journal.restart_rate()
        self.ctx.journal.event("server", f"{self._who} answers after {self.start_s:.0f} s at {self.base_url}.")

    def stop(self) -> None:
        """End the server and everything that it started: TERM, a bounded wait, KILL. Safe to call twice."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        process, self._process = self._process, None
        if process is not None:
            survivors = end_tree(process)
            if survivors:
                pids = ", ".join(str(pid) for pid in survivors)
                self.ctx.journal.event(
                    "server",
                    f"Processes {pids} of {self._who[0].lower()}{self._who[1:]} do not end, not even by KILL; a driver may hang.",
                    level="error",
                )
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        if self._sockets is not None:
            self._sockets.cleanup()
            self._sockets = None
        self._record.unlink(missing_ok=True)

    def command(self, port: int) -> list[str]:
        """The server's command line."""
        return [self.python(), *self.arguments(port), *self._extra_args]

    def environment(self) -> dict[str, str]:
        """The server's environment: the worker's own without secrets, what a run always sets, the spec's, and the caller's, later
        wins.

        The devices are those of the stage that the server works for.
        """
        env = self.own_environment() | redact.without_secrets(os.environ)
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        env |= {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        if self._sockets is not None:
            env["VLLM_RPC_BASE_PATH"] = self._sockets.name
        env |= device_environment(self.ctx.spec, self._stage)
        env |= self.ctx.spec.server.env
        env |= self._env
        if self._pythonpath is not None:
            env["PYTHONPATH"] = os.pathsep.join(p for p in (str(self._pythonpath), env.get("PYTHONPATH", "")) if p)
        return env

    # --------------------------------------------------------------- watching

    def check_alive(self) -> None:
        """Raise ServerDied, with the last error line of its log, when the server's process has ended, or when it lives and
        has answered nothing for too long."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            raise self._death("while it was working")
        if self._watch is not None and self._watch.dead:
            raise ServerDied(
                f"{self._who} lives and answers nothing: {self._watch.dead}. Its log is {self.log_path}.",
                detail=tail(self.log_path),
            )

    def counters(self) -> Counters:
        """What ``/metrics`` says now; see ``engines.server.Server``."""
        return parse_counters(self._get("/metrics").text)

    def limit(self) -> None:
        """No limit but the spec's: nobody else uses it."""
        return

    def client(self) -> httpx.Client:
        """A client of one's own to this server, with the base URL set and no proxy; the caller closes it."""
        return local_client(self.base_url)

    def surviving(self, work: Callable[[], Result], died: Callable[[], bool] = unexplained) -> Result:
        """Do ``work``, and again after each death that ``server.restarts`` allows to mend; see ``engines.server.Server``."""
        while True:
            try:
                return work()
            except ServerDied as death:
                self._died.judge(died)
                self._restart(death)
            except StageError as error:
                # Requests of a server that is just dying fail a moment before it is seen to be dead.
                late = self._late_death()
                if late is None:
                    raise
                late.__cause__ = error
                self._died.judge(died)
                self._restart(late)

    def _late_death(self) -> ServerDied | None:
        began = time.monotonic()
        while self._process is not None:
            try:
                self.check_alive()
            except ServerDied as death:
                return death
            doubtful = self._watch is not None and self._watch.doubtful
            if time.monotonic() - began > _LATE_DEATH_S * (30 if doubtful else 1):
                return None
            self.ctx.check_stop()
            time.sleep(_POLL_S)
        return None

    def _restart(self, death: ServerDied) -> None:
        """Start the server again after ``death``, with a pause that doubles. Raises StageError when it has died too often."""
        settings = self.ctx.spec.server
        while True:
            number = self._died.one_more()
            if number > settings.restarts or self.ctx.spec.guards.server == "stop":
                times = "once" if number == 1 else f"{number} times within an hour of serving"
                why = f"server.restarts is {settings.restarts}" if number > settings.restarts else "guards.server is stop"
                told = f"{death} It has died {times} and is not started again ({why})."
                raise self._died.stop(told, number, settings.restarts, death.detail) from death
            pause_s = min(settings.backoff_s * 2 ** (number - 1), _LONGEST_PAUSE_S)
            action = (
                f"It is started again in {pause_s:g} s, {number} of {settings.restarts} times; where it dies again look into "
                f"{self.log_path}."
            )
            held = self._died.tell(f"{death}", action, number, settings.restarts, death.detail, pause_s=pause_s)
            self.stop()
            if held:
                self._died.hold()
            try:
                with self._died.away():
                    self._pause(pause_s)
                    self._start()
                return
            except ServerDied as again:
                death = again

    def _pause(self, pause_s: float) -> None:
        reason = f"{self._who} has died and is started again"
        self.ctx.journal.waits(self._stage, reason, pause_s + 60.0)
        began = time.monotonic()
        while time.monotonic() - began < pause_s:
            self.ctx.check_stop()
            time.sleep(min(_POLL_S, pause_s))

    def _get(self, path: str) -> httpx.Response:
        assert self._http is not None, "the server is used outside its with block"
        try:
            response = self._http.get(path)
            response.raise_for_status()
        except httpx.HTTPError as error:
            self.check_alive()
            raise StageError(
                f"{self._who} does not answer {path} ({error or type(error).__name__}); see {self.log_path}."
            ) from error
        return response

    def _spawn(self, port: int) -> None:
        with self.log_path.open("ab") as log:
            log.write(f"\n===== {self.name} server, {time.strftime('%Y-%m-%d %H:%M:%S')} =====\n".encode())
            try:
                self._process = subprocess.Popen(
                    self.command(port),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment(),
                    # Not the run directory: "-m" puts the working folder first on the import path, and it holds a "data".
                    cwd=self.log_path.parent,
                    start_new_session=True,
                )
            except OSError as error:
                raise StageError(
                    f"The interpreter for {self.what}, {self.python()}, cannot start ({error.strerror}); set server_python."
                ) from error
        self.pid = self._process.pid
        rundir.write_json(
            self._record,
            {"v": 1, "url": self.base_url, "pid": self.pid, "kind": self.name, "model": self.model, "t": time.time()},
            durable=False,
        )

    def _wait_until_ready(self, began: float) -> None:
        limit_s = self.ctx.spec.server.start_timeout_s
        reason = f"the {self.name} {self.what} server loads {self.ctx.spec.target.name}"
        if self._died.any:
            self.ctx.journal.waits(self._stage, reason, limit_s)
        else:
            self.ctx.journal.progress(self._stage, 0, None, "", quiet_s=limit_s, reason=reason)
        while not self._ready():
            assert self._process is not None
            if self._process.poll() is not None:
                raise self._death("while it was loading")
            if time.monotonic() - began > limit_s:
                raise ServerDied(
                    f"{self._who} did not answer within {limit_s:.0f} s (server.start_timeout_s); its log is {self.log_path}.",
                    detail=tail(self.log_path),
                )
            self.ctx.check_stop()
            self._meanwhile()
            time.sleep(_POLL_S)

    def _ready(self) -> bool:
        assert self._http is not None
        try:
            if self._http.get("/health").status_code != httpx.codes.OK:
                return False
            listed = self._http.get("/v1/models")
        except httpx.HTTPError:
            return False
        return listed.status_code == httpx.codes.OK and self.model in _model_ids(listed)

    def _death(self, when: str) -> ServerDied:
        assert self._process is not None
        code = self._process.returncode
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        line = last_error(self.log_path)
        return ServerDied(
            f"{self._who} ended {how} {when}: {line} The whole story is in {self.log_path}.",
            detail=tail(self.log_path),
        )

    @property
    def _who(self) -> str:
        return f"The {self.name} {self.what} server"


def _model_ids(listed: httpx.Response) -> set[str]:
    body: Any = listed.json()
    return {str(model.get("id")) for model in body.get("data", [])}
