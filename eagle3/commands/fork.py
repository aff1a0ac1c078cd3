"""``eagle3 fork``: a new run from a stage or a checkpoint of another, with other numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3.commands.common import (
    DEFAULT_WORKSPACE,
    EXIT_USAGE,
    Anyway,
    Json,
    Overrides,
    RunId,
    Secrets,
    Workspace,
    actor,
    ask,
    directory,
    fail,
    launch_of,
    pairs_of,
    spec_in,
)
from eagle3.commands.following import checked, need_secrets, secrets_of, start
from eagle3.core.estimate import estimate
from eagle3.core.lineage import ForkError, forked
from eagle3.core.presets import SpecError


def fork(
    run_id: RunId,
    new_id: Annotated[str, typer.Option("--id", help="id of the new run")],
    from_stage: Annotated[str | None, typer.Option(help="this stage and all after it start from nothing")] = None,
    from_checkpoint: Annotated[int | None, typer.Option(help="the training goes on from the checkpoint of this step")] = None,
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    secret: Secrets = None,
    as_json: Json = False,
    detach: Annotated[bool, typer.Option(help="return once it has started")] = False,
    anyway: Anyway = False,
    dry_run: Annotated[bool, typer.Option(help="only say what would be taken over, and what runs again and why")] = False,
) -> None:
    """Start a new run that takes over what another has made, without copying it, with other numbers."""
    from eagle3.runner import fork as forking

    run_dir = directory(workspace, run_id, as_json=as_json)
    parent = spec_in(run_dir, as_json=as_json)
    try:
        child, found = forked(
            parent,
            run_id,
            pairs_of(overrides),
            workspace=workspace,
            finished=forking.finished_stages(run_dir),
            checkpoints=forking.checkpoints(run_dir),
            states_missing=forking.states_missing(run_dir),
            from_stage=from_stage,
            from_checkpoint=from_checkpoint,
        )
    except (SpecError, ForkError) as error:
        raise fail(str(error), EXIT_USAGE, as_json=as_json) from error
    if problems := estimate(child).problems:
        raise fail(problems[0], EXIT_USAGE, as_json=as_json)
    if dry_run:
        told = {"takes": found.takes, "partial": found.partial, "again": dict(found.again), "changed": found.changed}
        typer.echo(json.dumps(told) if as_json else "\n".join(found.lines(run_id)))
        return
    # Both before anything is made.
    need_secrets(names := [*secrets_of(run_dir), *(secret or [])], as_json=as_json)
    # Asked for again it starts nothing, so nothing has to be ready for it.
    there = (Path(workspace).expanduser() / "runs" / new_id / "launch.json").exists()
    report = None if there else checked(child, anyway=anyway, as_json=as_json, taken=found.takes)
    ask(
        "fork",
        {
            "workspace": workspace,
            "run_id": run_id,
            "new_id": new_id,
            "spec_toml": child.to_toml(),
            "launch": launch_of(child),
            "stages": list(found.takes),
            "partial": list(found.partial),
            "checkpoint": found.checkpoint,
            "changed": list(found.changed),
            "actor": actor(),
        },
        as_json=as_json,
    )
    for line in found.lines(run_id):
        typer.echo(line, err=as_json)
    start(workspace, new_id, child, names, resume=False, detach=detach, as_json=as_json, report=report)
