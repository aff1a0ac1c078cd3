"""``eagle3 prune``: what could be deleted, how much that frees, and deleting it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from eagle3.commands.common import DEFAULT_WORKSPACE, EXIT_USAGE, Json, Workspace, ask, fail
from eagle3.core.wording import bytes_label


def prune(
    run_id: Annotated[str | None, typer.Argument(help="run id, as `eagle3 ls` shows it")] = None,
    every: Annotated[bool, typer.Option("--all", help="every run of the workspace")] = False,
    states: Annotated[bool, typer.Option("--states", help="hidden states; a fork or --verify would extract them again")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="checkpoints of the training; the draft stays")] = False,
    untrained: Annotated[bool, typer.Option("--untrained", help="the draft as it was before the training")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="logs of servers and of earlier attempts")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="of a run that will not be resumed: keep nothing for its unfinished stages")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would be freed")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """Delete what a run no longer needs. Without naming an artefact everything is listed and nothing deleted."""
    if (run_id is None) == (not every):
        raise fail("Name a run, or say --all.", EXIT_USAGE, as_json=as_json)
    if abandon and every:
        raise fail("Name the run to abandon: --abandon does not go with --all.", EXIT_USAGE, as_json=as_json)
    asked = {"states": states, "checkpoints": checkpoints, "untrained": untrained, "logs": logs}
    named = [name for name, on in asked.items() if on]
    apply = bool(named) and not dry_run
    request = {"workspace": workspace, "run_id": run_id, "artefacts": named or list(asked), "apply": apply, "abandon": abandon}
    found = ask("prune", request, as_json=as_json)["runs"]
    if as_json:
        typer.echo(json.dumps({"v": 1, "applied": apply, "runs": found}))
        return
    for run in found:
        for item in run["items"]:
            if not item["files"]:
                continue
            size = bytes_label(item["bytes"])
            shared = item["bytes"] - item["freed_bytes"] if not item["kept"] else 0
            also = f"; {bytes_label(shared)} of it have another name in a fork and stay there" if shared else ""
            freed = f"{'freed' if apply else 'frees'} {bytes_label(item['freed_bytes'])}{also}"
            outcome = f"kept, {item['kept']}" if item["kept"] else freed
            typer.echo(f"{run['run_id']} {item['what']}: {item['files']} files, {size}: {outcome}")
    total = bytes_label(sum(run["freed_bytes"] for run in found))
    typer.echo(f"{total} freed." if apply else f"{total} would be freed{'' if named else ' by --' + ' --'.join(asked)}.")
