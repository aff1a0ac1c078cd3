"""``eagle3 spec show|diff|validate|estimate``: the RunSpec before anything starts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from eagle3.commands.common import (
    DEFAULT_WORKSPACE,
    EXIT_USAGE,
    Json,
    Machine,
    Overrides,
    Size,
    Target,
    Workspace,
    fail,
    pairs_of,
    spec_of,
)
from eagle3.core import presets, refusals, spec_docs
from eagle3.core.estimate import estimate as estimate_of
from eagle3.core.estimate import lines
from eagle3.core.presets import SpecError
from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import misfit
from eagle3.forecast import here
from eagle3.measured import rates_of
from eagle3.problems_here import problems_here
from eagle3.targets import model_dir

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, help="The RunSpec before anything starts.")

WHICH = "a spec.toml or JSON file, the id of a run, or SIZE/TARGET/MACHINE"
Source = Annotated[str | None, typer.Argument(metavar="SPEC", help=f"{WHICH}; left out: the presets of the options")]


@app.callback()
def main(
    context: typer.Context,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """The resolved RunSpec, as a run would be started with it; with a subcommand, more about it."""
    if context.invoked_subcommand is None:
        found = spec_of(size, target, machine, overrides, as_json=as_json)
        typer.echo(found.model_dump_json() if as_json else found.to_toml())


@app.command()
def show(
    source: Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    docs: Annotated[bool, typer.Option("--docs", help="every field with its unit, default and meaning, as Markdown")] = False,
    as_json: Json = False,
) -> None:
    """The resolved spec, as TOML or JSON; --docs explains every field."""
    if docs:
        typer.echo(spec_docs.markdown(), nl=False)
        return
    found = read(source, size, target, machine, overrides, workspace, as_json=as_json)
    typer.echo(found.model_dump_json() if as_json else found.to_toml())


@app.command()
def diff(
    one: Annotated[str, typer.Argument(help=WHICH)],
    other: Annotated[str, typer.Argument(help=WHICH)],
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """The fields in which two specs differ; exit code 1 where there are any, as diff does."""
    left, right = (load(name, workspace, as_json=as_json) for name in (one, other))
    changed = presets.difference(left, right)
    if as_json:
        typer.echo(json.dumps({name: list(values) for name, values in changed.items()}))
    for name, (before, after) in changed.items() if not as_json else ():
        typer.echo(f"{name}: {json.dumps(before)} → {json.dumps(after)}")
    if changed:
        raise typer.Exit(1)


@app.command()
def validate(
    source: Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """Whether a run could be started with it; says what is wrong, and exits with 1 where something is."""
    found = read(source, size, target, machine, overrides, workspace, as_json=as_json)
    wrong = misfit(model_dir(found.target.model), found.target)
    problems = [*(estimate_of(found).problems or problems_here(found)), *([wrong] if wrong else [])]
    if as_json:
        typer.echo(json.dumps({"hash": found.hash, "problems": problems}))
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"{found.size} of {found.target.name} on {found.machine} can be started (spec {found.hash}).")


@app.command()
def estimate(
    source: Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """Bytes, tokens and time by stage, and where each rate comes from; rates that the workspace has measured count first."""
    found = read(source, size, target, machine, overrides, workspace, as_json=as_json)
    result = here(estimate_of(found, rates_of(Path(workspace).expanduser(), found)))
    typer.echo(json.dumps(result.to_json()) if as_json else "\n".join(lines(result)))


def read(
    source: str | None, size: str, target: str, machine: str, overrides: list[str] | None, workspace: str, *, as_json: bool
) -> RunSpec:
    """The spec of a file, a run or the presets, with the overrides applied. Ends the command where there is none."""
    if source is None:
        return spec_of(size, target, machine, overrides, as_json=as_json, workspace=workspace)
    found = load(source, workspace, as_json=as_json)
    try:
        return presets.override(found, pairs_of(overrides))
    except SpecError as error:
        raise fail(str(error), EXIT_USAGE, as_json=as_json) from error


def load(source: str, workspace: str, *, as_json: bool) -> RunSpec:
    """The spec behind a word of the command line. Ends the command with one sentence where it is none."""
    names = source.split("/")
    run_spec = Path(workspace).expanduser() / "runs" / source / "spec.toml"
    try:
        if Path(source).is_file():
            return _from_file(Path(source))
        if "/" not in source and run_spec.is_file():
            return _from_file(run_spec)
        if len(names) == 3 and all(names):
            return presets.resolve(names[0], names[1], names[2])
    except SpecError as error:
        raise fail(str(error), EXIT_USAGE, as_json=as_json) from error
    raise fail(f"'{source}' is no spec: give {WHICH}.", EXIT_USAGE, as_json=as_json)


def run_of(source: str, workspace: str) -> Path | None:
    """The folder of the run that a word of the command line names the spec of; None where it is a preset."""
    if Path(source).is_file():
        return Path(source).absolute().parent
    folder = Path(workspace).expanduser() / "runs" / source
    return folder if "/" not in source and (folder / "spec.toml").is_file() else None


def _from_file(path: Path) -> RunSpec:
    """Raises SpecError, naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
        value: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        if not isinstance(value, dict):
            raise ValueError("it holds no object")
        return RunSpec.model_validate(value)
    except ValidationError as error:
        raise SpecError(f"{path}: {refusals.explain(error, RunSpec)}") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise SpecError(f"{path} cannot be read as a spec ({why}); `eagle3 spec` prints one.") from error
