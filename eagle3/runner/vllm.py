"""vLLM servers in the container: found in the process table, in the runs' own notes, or named; asked over loopback."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import time
import urllib.parse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from eagle3.runner import host, identity, proctable, rundir, state, vllm_metrics

DEADLINE_S = 2.0
DEFAULT_PORT = 8000
MAX_BODY_BYTES = 4 << 20
EXTRACTING = "extract_hidden_states"
"""In the command line of a server that extracts: its fake drafts are all accepted, so its acceptance says nothing."""
LOADING_S = 3600.0
"""So long a live process that does not listen is taken to be loading: what the presets give a model of a trillion parameters."""


def servers(run_dirs: Iterable[Path], urls: Iterable[str]) -> List[Dict[str, Any]]:
    """Every server that is known of, each once by address, with what its ``/health`` says."""
    found: Dict[str, Dict[str, Any]] = {}
    for entry in [*_of_runs(run_dirs), *_of_processes(), *({"url": url, "pid": None, "run_id": ""} for url in urls)]:
        known = found.setdefault(_key(entry["url"]), entry)
        for field in ("pid", "run_id", "extracting"):
            known[field] = known.get(field) or entry.get(field)
    entries = list(found.values())
    answers = host.in_parallel([functools.partial(ask, entry["url"]) for entry in entries], DEADLINE_S + 0.5)
    silent = {"health": "down", "text": f"/health did not answer within {DEADLINE_S:.0f} s"}
    return [_loading({**entry, **(answer if answer is not None else silent)}) for entry, answer in zip(entries, answers)]


def _loading(server: Dict[str, Any]) -> Dict[str, Any]:
    """Nothing listens yet, but the process lives and is young: that is not known to be down."""
    process = identity.stat(server["pid"]) if server.pop("refused", False) and server["pid"] else None
    age_s = host.uptime_s() - process.start_ticks / identity.TICKS_PER_S if process else LOADING_S
    if age_s < LOADING_S:
        server.update(health="unknown", text=f"loading: its process is {age_s:.0f} s old and does not listen yet")
    return server


def ask(url: str, deadline_s: float = DEADLINE_S) -> Dict[str, Any]:
    """``{"health","models","running","waiting","text"}`` of one server. Never raises; the text says what went wrong."""
    base, end = url.rstrip("/"), time.monotonic() + deadline_s
    answer: Dict[str, Any] = {"health": "down", "models": [], "running": None, "waiting": None, "text": ""}
    try:
        status, _ = get(f"{base}/health", deadline_s)
    except (OSError, ValueError) as error:
        refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        return {**answer, "text": f"/health does not answer: {_why(error)}", "refused": refused}
    if status != 200:
        return {**answer, "text": f"/health answers {status}"}
    answer["health"] = "ok"
    try:
        status, body = get(f"{base}/v1/models", end - time.monotonic())
        if status == 200:
            answer["models"] = [str(model["id"]) for model in json.loads(body.decode("utf-8"))["data"]]
        else:
            answer["text"] = f"/v1/models answers {status}" + (" (it wants an API key)" if status == 401 else "")
        status, body = get(f"{base}/metrics", end - time.monotonic())
        if status == 200:
            answer.update(vllm_metrics.load(body.decode("utf-8", "replace")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        answer["text"] = f"/health is well, the rest is not: {_why(error)}"
    return answer


@functools.lru_cache(maxsize=None)
def _opener() -> Any:
    # Imported by the first question: http and TLS would be a third of what a helper's start takes.
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    # No proxy: these are addresses of the container itself, whatever http_proxy says.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())


def get(url: str, timeout_s: float, limit: int = MAX_BODY_BYTES) -> Tuple[int, bytes]:
    """GET within ``timeout_s`` altogether: status and at most ``limit`` bytes. Raises OSError, ValueError (a bad URL)."""
    end = time.monotonic() + max(0.05, timeout_s)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is no http address")
    from urllib.error import HTTPError

    try:
        response = _opener().open(url, timeout=max(0.05, timeout_s))
    except HTTPError as error:
        response = error
    with response:
        parts: List[bytes] = []
        size = 0
        while size < limit:
            part = response.read1(min(65536, limit - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
            if time.monotonic() > end:
                raise TimeoutError(f"its answer was not complete within {timeout_s:.1f} s")
        return int(response.getcode()), b"".join(parts)


def is_loopback(url: str) -> bool:
    """Whether ``url`` is an http address of this very container."""
    try:
        parts = urllib.parse.urlsplit(url)
        name = parts.hostname or ""
        return parts.scheme in ("http", "https") and (name == "localhost" or ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False


def serving_arguments(arguments: List[str]) -> Optional[List[str]]:
    """What a vLLM server was told, after the words that make it one; None for any other command line."""
    names = [Path(part).name for part in arguments]
    at = next((i for i, name in enumerate(names[:-1]) if name == "vllm" and arguments[i + 1] == "serve"), None)
    if at is None:
        module = "vllm.entrypoints.openai.api_server"
        at = next(
            (
                i
                for i, part in enumerate(arguments)
                if (part == module and i and arguments[i - 1] == "-m") or part.endswith(module.replace(".", "/") + ".py")
            ),
            None,
        )
    return None if at is None else arguments[at + 1 :]


def is_server(arguments: List[str]) -> bool:
    """Whether this command line is a vLLM server's."""
    return serving_arguments(arguments) is not None


def serving_url(arguments: List[str]) -> Optional[str]:
    """The address of the vLLM server with this command line; None where it is none, or takes a free port."""
    rest = serving_arguments(arguments)
    if rest is None:
        return None
    port, name = str(DEFAULT_PORT), ""
    for index, part in enumerate(rest):
        key, equals, value = part.partition("=")
        value = value if equals else rest[index + 1] if index + 1 < len(rest) else ""
        if key == "--port":
            port = value
        elif key == "--host":
            name = value
        elif key == "--uds":
            return None
    if not port.isdigit() or port == "0":
        return None
    if name in ("", "0.0.0.0", "::", "localhost"):
        name = "127.0.0.1"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _of_processes() -> List[Dict[str, Any]]:
    result = []
    for found in sorted(proctable.snapshot().values(), key=lambda p: p.start_ticks):
        arguments = proctable.command_line(found.pid) if proctable.is_live(found) else []
        url = serving_url(arguments)
        if url is not None:
            run_id = proctable.environment(found.pid).get("EAGLE3_RUN_ID", "")
            extracting = any(EXTRACTING in part for part in arguments)
            result.append({"url": url, "pid": found.pid, "run_id": run_id, "extracting": extracting})
    return result


def _of_runs(run_dirs: Iterable[Path]) -> List[Dict[str, Any]]:
    result = []
    for run_dir in run_dirs:
        with contextlib.suppress(OSError):  # a run without a server, or one that is being removed
            for file in sorted((run_dir / "servers").glob("*.json")):
                note = rundir.read_object(file)
                pid = note.get("pid") if isinstance(note.get("pid"), int) else None
                if note.get("url") and (pid is None or identity.stat(pid) is not None):
                    extracting = note.get("kind") == "extract"
                    result.append({"url": str(note["url"]), "pid": pid, "run_id": run_dir.name, "extracting": extracting})
    return result


def live(run_dirs: Iterable[Path], summaries: Iterable[Dict[str, Any]]) -> List[Path]:
    """Those of ``run_dirs`` whose summary says that something of them is alive."""
    alive = {s["run_id"] for s in summaries if s["state"] in state.LIVE}
    return [run_dir for run_dir in run_dirs if run_dir.name in alive]


def _key(url: str) -> str:
    with contextlib.suppress(ValueError):  # no address at all: compare the text
        parts = urllib.parse.urlsplit(url)
        name = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
        return f"{name}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    return url


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason)
