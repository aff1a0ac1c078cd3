"""A run started from another's spec, held against what that one was made from."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from eagle3 import made_from
from eagle3.commands import spec as spec_commands
from eagle3.commands.common import EXIT_USAGE, fail
from eagle3.core.spec import RunSpec
from eagle3.targets import model_dir


def held_against(source: str, spec: RunSpec, workspace: str, *, exact: bool, as_json: bool) -> RunSpec:
    """``spec``, with the commit of a target that is still to be downloaded. What differs here from what the run of ``source``
    was made from is said on stderr; what ``spec`` itself names otherwise is meant, and not compared. With ``exact`` the command
    ends where something differs, or where nothing tells what that run was made from."""
    folder = spec_commands.run_of(source, workspace)
    then = made_from.of_run(folder) if folder else {}
    if not then:
        if exact:
            text = f"Nothing beside {source} says what that run was made from (older runs do not); start it without --exact."
            raise fail(text, EXIT_USAGE, as_json=as_json)
        return spec
    theirs = spec_commands.load(source, workspace, as_json=as_json)
    now = made_from.here(spec, spec.worker_python or sys.executable)
    if spec.target != theirs.target:
        now.pop("target")
    if spec.data.prompts != theirs.data.prompts:
        now.pop("prompts")
    found = made_from.differences(then, now)
    if found and exact:
        raise fail(f"This would not be the run of {source} again. {' '.join(found)}", EXIT_USAGE, as_json=as_json)
    for line in found:
        typer.echo(f"Not as in {source}: {line}", err=True)
    return _pinned(spec, str((then.get("target") or {}).get("commit") or ""))


def _pinned(spec: RunSpec, commit: str) -> RunSpec:
    """A target that is not here is downloaded at the commit that the other run had."""
    source = spec.target.source
    if not commit or "@" in source or not source.startswith("hub:") or Path(model_dir(spec.target.model)).exists():
        return spec
    typer.echo(f"The target is not here and is downloaded at {commit[:12]}, the commit of that run.", err=True)
    return spec.model_copy(update={"target": spec.target.model_copy(update={"source": f"{source}@{commit}"})})
