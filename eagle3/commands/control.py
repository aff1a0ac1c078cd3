"""``eagle3 pause``, ``checkpoint`` and ``restore``: asking of a run. (``resume`` lets a paused one go on.)"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from eagle3.commands.common import DEFAULT_WORKSPACE, Json, RunId, Workspace, actor, ask, command_for
from eagle3.core.records import Pause
from eagle3.core.wording import paused_already


def pause(run_id: RunId, workspace: Workspace = DEFAULT_WORKSPACE, as_json: Json = False) -> None:
    """Hold a run between two units of work; it keeps its memory and its GPUs. `eagle3 resume` lets it go on."""
    reply = request(run_id, workspace, "pause", as_json=as_json)
    if not as_json:
        said = paused_already(run_id, reply) or f"{run_id} pauses after the work under way; nothing is freed."
        resume, stop = (command_for(verb, run_id, workspace) for verb in ("resume", "stop"))
        typer.echo(f"{said} {resume} lets it go on, {stop} frees what it holds.")


def checkpoint(run_id: RunId, workspace: Workspace = DEFAULT_WORKSPACE, as_json: Json = False) -> None:
    """Save a training now, after the step under way."""
    reply = request(run_id, workspace, "checkpoint", as_json=as_json)
    if not as_json:
        later = (
            f"{run_id} is in {reply['stage'] or 'its start'}, where all that is finished is on disk; train saves its first step."
        )
        typer.echo(f"{run_id} saves after the step under way." if reply["stage"] == "train" else later)


def restore(run_id: RunId, workspace: Workspace = DEFAULT_WORKSPACE, as_json: Json = False) -> None:
    """Start again what was stopped for a run that has ended and could not be started again by itself."""
    reply = ask("restore", {"workspace": workspace, "run_id": run_id, "actor": actor()}, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(reply))
        return
    names = ", ".join(reply["services"])
    typer.echo(f"Starting {names} again." if names else f"Nothing that was stopped for {run_id} waits to be started again.")


def request(run_id: str, workspace: str, action: str, *, as_json: bool, lift: Sequence[Pause] = ()) -> dict[str, Any]:
    """The runner's answer, printed where JSON was asked for. ``lift``: the pauses that a "go-on" ends; none named: all."""
    args: dict[str, Any] = {"workspace": workspace, "run_id": run_id, "action": action, "actor": actor()}
    if lift:
        args["lift"] = [[pause.by, pause.t] for pause in lift]
    reply = ask("control", args, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(reply))
    return reply
