"""``eagle3 prefetch``: what a run needs from elsewhere, on this machine before the paid hours."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from eagle3.commands.common import DEFAULT_WORKSPACE, Json, Machine, Overrides, Size, Target, Workspace, fail, spec_of
from eagle3.core.wording import bytes_label


def prefetch(
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    dry_run: Annotated[bool, typer.Option(help="only say what is missing, how large it is, and whether there is room")] = False,
    as_json: Json = False,
) -> None:
    """Bring the target onto this machine: size and room first, then a download that goes on where it was interrupted."""
    from eagle3 import hub
    from eagle3.targets import TargetError, fetch, model_dir

    spec = spec_of(size, target, machine, overrides, as_json=as_json, workspace=workspace)
    folder = model_dir(spec.target.model)
    scheme, _, where = spec.target.source.partition(":")
    told: dict[str, Any] = {"v": 1, "target": spec.target.name, "folder": str(folder), "there": folder.is_dir(), "source": where}

    def say(text: str) -> None:
        typer.echo(text, err=as_json)

    try:
        if scheme == "hub" and not told["there"]:
            found = hub.listing(where)
            missing = hub.missing_bytes(found, folder)
            told |= {"bytes": found.bytes, "missing_bytes": missing, "files": len(found.files), "commit": found.commit}
            say(f"{found.repo}: {len(found.files)} files, {bytes_label(found.bytes)}; {bytes_label(missing)} to download.")
            if short := hub.no_room(found, folder):
                raise fail(short, as_json=as_json)
        if not dry_run:
            fetch(spec.target.name, spec.target.source, folder, say)
            told["there"] = True
    except (hub.HubError, TargetError) as error:
        raise fail(str(error), as_json=as_json) from error
    if as_json:
        typer.echo(json.dumps(told))
    elif told["there"]:
        typer.echo(f"{spec.target.name} is at {folder}, whole.")
