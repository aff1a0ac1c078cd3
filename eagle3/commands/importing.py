"""``eagle3 import``: a run of hidden states that were extracted elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3.commands import spec as spec_commands
from eagle3.commands.common import (
    DEFAULT_WORKSPACE,
    EXIT_USAGE,
    Json,
    Machine,
    Overrides,
    Size,
    Target,
    Workspace,
    actor,
    fail,
    launch_of,
    refused,
)


def import_states(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE…", help="a folder of speculators' prepare-data, or all shares of one run"),
    ],
    new_id: Annotated[str, typer.Option("--id", help="id of the new run")],
    states: Annotated[Path | None, typer.Option(help="folder of hs_*.safetensors; left out: SOURCE/hidden_states")] = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    source: Annotated[str | None, typer.Option("--spec", help=f"instead of the presets: {spec_commands.WHICH}")] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """Make a run of hidden states that speculators has made, or of the shares of one run. Files are checked, and linked where the
    file system can; `eagle3 resume` then trains on them."""
    from eagle3.importing import filling, making, speculators_folder
    from eagle3.runner.errors import VerbError

    folders = [_folder(name, workspace) for name in sources]
    try:
        if all((folder / "spec.toml").is_file() for folder in folders):
            spec = making.joined_spec(folders, workspace)
            made = making.make(
                workspace, new_id, spec, launch_of(spec), folders, lambda ctx: filling.from_shares(ctx, folders), actor()
            )
        elif len(folders) == 1 and speculators_folder.is_one(folders[0]):
            data, place = folders[0], states or folders[0] / "hidden_states"
            spec = spec_commands.read(source, size, target, machine, overrides, workspace, as_json=as_json)
            spec = spec.model_copy(update={"workspace": workspace, "forked_from": ""})
            made = making.make(
                workspace, new_id, spec, launch_of(spec), [data, place],
                lambda ctx: filling.from_speculators(ctx, data, place), actor(),
            )  # fmt: skip
        else:
            wrong = next((folder for folder in folders if not (folder / "spec.toml").is_file()), folders[0])
            text = f"{wrong} is neither a folder of speculators' prepare-data (dataset_info.json, state.json) nor a run."
            raise fail(text, EXIT_USAGE, as_json=as_json)
    except VerbError as error:
        raise refused(error, as_json=as_json) from error
    if as_json:
        typer.echo(json.dumps(made))
        return
    left = "".join(
        f"; {made[name]} {why}"
        for name, why in (
            ("put_aside", "put aside (states/quarantine.jsonl)"), ("repeated", "repeat another and are left out"),
            ("repeating", "are runs of repeated tokens and are left out"),
            ("unsupervised", "have nothing to learn from and are left out"),
            ("evaluated", "ask a prompt of the evaluation, so the draft is not trained on them"),
        )
        if made.get(name)
    )  # fmt: skip
    typer.echo(f"{new_id} holds {made['samples']} samples with their states{left}. `eagle3 resume {new_id}` trains on them.")


def _folder(name: str, workspace: str) -> Path:
    """A source as a folder: a path, or the id of a run of the workspace."""
    run = Path(workspace).expanduser() / "runs" / name
    return run.resolve() if "/" not in name and run.is_dir() else Path(name).expanduser().resolve()
