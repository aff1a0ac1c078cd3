"""What the helper channel can be asked: ``handle(verb, args)``.

Arguments and answers are plain JSON; ``LIMITS_S`` names the verbs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from eagle3 import __version__
from eagle3.runner import collect as collecting
from eagle3.runner import control as controlling
from eagle3.runner import (
    deepcheck,
    gpu,
    host,
    intact,
    jobs,
    logs,
    notes,
    polling,
    remedies,
    rundir,
    settling,
    shakedown,
    since,
    stack_dump,
    state,
    vllm,
    watchers,
)
from eagle3.runner import fork as forking
from eagle3.runner import launch as launching
from eagle3.runner import probe as probing
from eagle3.runner import prune as pruning
from eagle3.runner import stop as stopping
from eagle3.runner.errors import VerbError, from_os_error
from eagle3.runner.services import listing, records, restoring, turns

__all__ = ["LIMITS_S", "PRESENCE", "VerbError", "handle"]

LIMITS_S = {
    "hello": 5.0,
    "probe": 20.0,
    "facts": 30.0,
    "list": 20.0,
    "launch": 45.0,
    "forkable": 30.0,
    "fork": 120.0,
    "read": 30.0,
    "poll": 30.0,
    "stop": 20.0,
    "collect": 40.0,
    "dump": 30.0,
    "since": 30.0,
    "service": 20.0,
    "restore": 20.0,
    "control": 20.0,
    "prune": 120.0,
    "gpu": 15.0,
    "http": 60.0,
    "check_start": 30.0,
    "shakedown": 30.0,
    "check_read": 30.0,
    "check_stop": 45.0,
    "remedy": 300.0,
    "log": 30.0,
    "notes": 20.0,
}
"""Seconds after which the channel answers that a verb has not answered."""

Args = Dict[str, Any]

PRESENCE = watchers.Presence()
"""Who sits at the other end of this process's channel."""


def handle(verb: str, args: Args, poller: Optional[polling.Poller] = None) -> Dict[str, Any]:
    """Do ``verb`` and give its answer; raises VerbError with the sentence for the person who asked.

    ``poller`` is the channel's own, which knows what it told; without one a poll tells everything.
    """
    if not isinstance(verb, str) or verb not in _VERBS:
        raise VerbError("usage", f"There is no verb {verb!r}.", f"Use one of {', '.join(_VERBS)}.")
    if not isinstance(args, dict):
        raise VerbError("usage", f"The arguments of {verb} must be an object.")
    try:
        if args.get("workspace"):
            PRESENCE.at(args["workspace"])
        if verb == "poll" and poller is not None:
            return _polled(args, poller)
        return _VERBS[verb](args)
    except KeyError as error:
        raise VerbError("usage", f"The verb {verb} needs the argument {error}.") from error
    except OSError as error:
        raise from_os_error(error, f"the verb {verb}") from error


def _hello(args: Args) -> Dict[str, Any]:
    if args.get("actor"):
        PRESENCE.tell(str(args["actor"]), args.get("watching"))
    if args.get("workspace"):
        PRESENCE.at(args["workspace"])
        _restore_due(args["workspace"])
    return {
        "version": __version__,
        "python": platform.python_version(),
        "pid": os.getpid(),
        "user": host.user(),
        "host": platform.node(),
        "home": str(Path.home()),
        "damaged": intact.damaged(),
    }


def _probe(args: Args) -> Dict[str, Any]:
    _restore_due(args["workspace"])
    return probing.probe(args["workspace"], args.get("paths") or (), args.get("urls") or ())


def _facts(args: Args) -> Dict[str, Any]:
    # Only a readiness sweep needs these: every helper would pay for their import when it starts.
    from eagle3.runner.facts import gather

    return gather(args["wants"], args.get("sections"))


def _list(args: Args) -> Dict[str, Any]:
    _restore_due(args["workspace"])
    return {"runs": probing.list_runs(args["workspace"]), "watchers": watchers.watchers(args["workspace"], time.time())}


def _restore_due(workspace: str) -> None:
    """A supervisor that died has left services stopped, and alerts untold: whoever looks at the workspace next sees to both."""
    with contextlib.suppress(PermissionError):  # the verb itself says it
        runs = rundir.runs(workspace)
        restoring.spawn_due(runs, PRESENCE.actor or host.user())
        settling.spawn_due(runs)


def _since(args: Args) -> Dict[str, Any]:
    return since.since(args["workspace"], float(args["t"]), int(args.get("limit") or since.MAX_HAPPENINGS))


def _service(args: Args) -> Dict[str, Any]:
    return listing.services(str(args.get("pattern") or "vllm*"))


def _restore(args: Args) -> Dict[str, Any]:
    """Start again, by hand, what a run has stopped and what could not be started again before."""
    run_dir = _existing(args)
    if state.summary(run_dir, time.time())["state"] in state.LIVE:
        text = f"The run {run_dir.name} is alive and needs what was stopped for it."
        raise VerbError("busy", text, "Stop the run: its supervisor starts them again.")
    waiting = records.outstanding(run_dir, failed=True)
    if waiting:
        restoring.spawn(run_dir, str(args.get("actor") or host.user()), again=True)
    elif away := records.elsewhere(run_dir):
        named = ", ".join(f"{name} (on {host})" for name, host in away)
        text = f"Stopped for {run_dir.name} on another host than this, {turns.host()}: {named}."
        raise VerbError("usage", text, "Ask there; where that host is gone, or was this one, start it by hand.")
    names = [str(entry["name"]) for _, yielded in waiting for entry in yielded["services"]]
    return {"run_id": run_dir.name, "services": names, "already": not waiting}


def _launch(args: Args) -> Dict[str, Any]:
    return launching.launch(
        args["workspace"],
        args["run_id"],
        args.get("spec_toml") or "",
        args.get("launch") or {},
        report=args.get("report"),
        actor=str(args.get("actor") or ""),
        resume=bool(args.get("resume")),
        secret_env=args.get("secret_env"),
        attempt=args.get("attempt"),
    )


def _forkable(args: Args) -> Dict[str, Any]:
    return forking.forkable(_existing(args))


def _fork(args: Args) -> Dict[str, Any]:
    return forking.fork(
        args["workspace"],
        args["run_id"],
        args["new_id"],
        args["spec_toml"],
        args["launch"],
        args.get("stages") or (),
        args.get("partial") or (),
        args.get("checkpoint"),
        args.get("changed") or (),
        str(args.get("actor") or ""),
    )


def _existing(args: Args) -> Path:
    run_dir = rundir.run_path(args["workspace"], args["run_id"])
    if not (run_dir / "launch.json").exists():
        raise VerbError(
            "not_found",
            f"There is no run {run_dir.name} in {run_dir.parent.parent}.",
            "`eagle3-tui runs` or `eagle3 ls` lists them.",
        )
    return run_dir


def _read(args: Args) -> Dict[str, Any]:
    run_dir = _existing(args)
    # The state first: what is read after it said "ended" is all that there will be.
    summary = state.summary(run_dir, time.time())
    ended = summary["state"] not in state.LIVE
    return {"summary": summary, "files": polling.read_files(run_dir, args.get("files") or [], ended)}


def _poll(args: Args) -> Dict[str, Any]:
    return _polled(args, polling.Poller())


def _polled(args: Args, poller: polling.Poller) -> Dict[str, Any]:
    if isinstance(args.get("probe"), dict):
        _restore_due(args["workspace"])
    PRESENCE.watch(str(args.get("run_id") or args.get("watching") or ""))
    return poller.poll(args, _run_of(args), time.time())


def _run_of(args: Args) -> Optional[Path]:
    return _existing(args) if args.get("run_id") else None


def _stop(args: Args) -> Dict[str, Any]:
    return stopping.stop(_existing(args), args.get("mode") or "now", str(args.get("actor") or ""), args.get("grace_s"))


def _collect(args: Args) -> Dict[str, Any]:
    # A run that has lost its launch.json is the more worth a report.
    run_dir = rundir.run_path(args["workspace"], args["run_id"])
    return collecting.collect(run_dir if run_dir.is_dir() else _existing(args))


def _control(args: Args) -> Dict[str, Any]:
    actor, lift = str(args.get("actor") or ""), args.get("lift")
    return controlling.control(_existing(args), str(args.get("action") or ""), actor, lift)


def _prune(args: Args) -> Dict[str, Any]:
    chosen = [_existing(args)] if args.get("run_id") else rundir.runs(args["workspace"])
    artefacts = [str(name) for name in args.get("artefacts") or ()]
    gone: Dict[Any, int] = {}
    abandon = bool(args.get("abandon"))
    return {"runs": [pruning.prune(run_dir, artefacts, bool(args.get("apply")), gone, abandon) for run_dir in chosen]}


def _dump(args: Args) -> Dict[str, Any]:
    return stack_dump.dump_last(_existing(args), str(args.get("actor") or ""))


def _gpu(_: Args) -> Dict[str, Any]:
    return gpu.report()


def _http(args: Args) -> Dict[str, Any]:
    url, timeout_s = str(args["url"]), min(float(args.get("timeout_s") or 5.0), LIMITS_S["http"] - 5.0)
    if not vllm.is_loopback(url):
        raise VerbError("usage", f"{url} is not an address of the container itself.", "Only loopback addresses are asked.")
    begun = time.monotonic()
    try:
        status, body = vllm.get(url, timeout_s)
    except (OSError, ValueError) as error:
        raise VerbError("failed", f"{url} does not answer: {error}.", "See whether its server still runs.") from error
    return {"status": status, "text": body.decode("utf-8", "replace"), "took_s": time.monotonic() - begun}


def _check_start(args: Args) -> Dict[str, Any]:
    wants = args["wants"]
    if not isinstance(wants, dict):
        raise VerbError("usage", "wants must be an object.")
    wants = {**wants, "workspace": args["workspace"]}
    return deepcheck.start(args["workspace"], wants, str(args.get("check_id") or ""), str(args.get("actor") or ""))


def _shakedown(args: Args) -> Dict[str, Any]:
    python, actor = str(args.get("python") or sys.executable), str(args.get("actor") or "")
    return shakedown.start(args["workspace"], args["run_id"], args["spec"], python, actor, args.get("secret_env"))


def _check_read(args: Args) -> Dict[str, Any]:
    return jobs.read(args["workspace"], args["check_id"], int(args.get("offset") or 0), int(args.get("log_offset") or 0))


def _check_stop(args: Args) -> Dict[str, Any]:
    return jobs.stop(args["workspace"], args["check_id"])


def _remedy(args: Args) -> Dict[str, Any]:
    return remedies.remedy(
        args["workspace"],
        str(args["action"]),
        args.get("args") or {},
        preview=args.get("preview") is not False,
        token=str(args.get("token") or ""),
    )


def _log(args: Args) -> Dict[str, Any]:
    return logs.log(_existing(args), str(args["op"]), args)


def _notes(args: Args) -> Dict[str, Any]:
    folder = _existing(args) if args.get("run_id") else rundir.workspace_path(args["workspace"])
    return notes.notes(folder, str(args["op"]), args)


_VERBS: Dict[str, Callable[[Args], Dict[str, Any]]] = {
    "hello": _hello,
    "probe": _probe,
    "facts": _facts,
    "list": _list,
    "launch": _launch,
    "forkable": _forkable,
    "fork": _fork,
    "read": _read,
    "poll": _poll,
    "stop": _stop,
    "collect": _collect,
    "control": _control,
    "prune": _prune,
    "dump": _dump,
    "since": _since,
    "service": _service,
    "restore": _restore,
    "gpu": _gpu,
    "http": _http,
    "check_start": _check_start,
    "shakedown": _shakedown,
    "check_read": _check_read,
    "check_stop": _check_stop,
    "remedy": _remedy,
    "log": _log,
    "notes": _notes,
}
