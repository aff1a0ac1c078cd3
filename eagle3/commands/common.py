"""What the subcommands share: their options, and how they ask the runner and refuse in one sentence."""

from __future__ import annotations

import getpass
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.core.launching import launch_request
from eagle3.core.presets import SpecError, parse_override, resolve
from eagle3.core.records import RunSummary
from eagle3.core.spec import RunSpec

if TYPE_CHECKING:
    from eagle3.runner.errors import VerbError

EXIT_FAILED, EXIT_USAGE = 1, 2

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Workspace = Annotated[str, typer.Option(help="folder that holds the runs")]
RunId = Annotated[str, typer.Argument(help="run id, as `eagle3 ls` shows it")]
Size = Annotated[str, typer.Option(help="preset of numbers")]
Target = Annotated[str, typer.Option(help="preset of the target model")]
Machine = Annotated[str, typer.Option(help="preset of the machine")]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="variable of this shell that only the worker gets; repeatable"),
]
Anyway = Annotated[bool, typer.Option("--anyway", help="start although the machine is not ready")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="override a field; repeatable")]

PATH_FIELDS = frozenset({"data.prompts", "target.model"})

DEFAULT_WORKSPACE = "~/eagle3"


def command_for(verb: str, run_id: str, workspace: str) -> str:
    """A command about a run, as it can be copied from a sentence."""
    where = "" if workspace == DEFAULT_WORKSPACE else f" --workspace {shlex.quote(workspace)}"
    return f"`eagle3 {verb} {run_id}{where}`"


def fail(text: str, code: int = EXIT_FAILED, *, as_json: bool = False) -> typer.Exit:
    """Say one sentence on stderr (and as JSON on stdout where asked) and give back the exit."""
    typer.echo(text, err=True)
    if as_json:
        typer.echo(json.dumps({"error": text}))
    return typer.Exit(code)


def spec_of(size: str, target: str, machine: str, overrides: list[str] | None, *, as_json: bool, **more: Any) -> RunSpec:
    """The spec of the presets and ``--set``; ends the command with one sentence where there is none."""
    try:
        return resolve(size, target, machine, {**more, **pairs_of(overrides)})
    except SpecError as error:
        raise fail(str(error), EXIT_USAGE, as_json=as_json) from error


def pairs_of(overrides: list[str] | None) -> dict[str, Any]:
    """The values of ``--set``. Raises SpecError for one that is not FIELD=VALUE."""
    return {field: from_here(field, value) for field, value in map(parse_override, overrides or [])}


def from_here(field: str, value: Any) -> Any:
    """A path of this command line, made absolute: the worker runs in another folder."""
    if field in PATH_FIELDS and isinstance(value, str) and not value.startswith("~") and Path(value).exists():
        return str(Path(value).absolute())
    return value


def directory(workspace: str, run_id: str, *, as_json: bool) -> Path:
    """A run's folder; ends the command with one sentence where there is none."""
    from eagle3.runner import rundir
    from eagle3.runner.errors import VerbError

    try:
        path = rundir.run_path(workspace, run_id)
    except VerbError as error:
        raise refused(error, as_json=as_json) from error
    if not path.is_dir():
        raise fail(f"There is no run {run_id} in {workspace}; `eagle3 ls` shows the runs.", as_json=as_json)
    return Path(path)


def ask(verb: str, args: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    """The runner's answer; ends the command with its sentence and the next step where it refuses."""
    from eagle3.runner import verbs

    try:
        return verbs.handle(verb, args)
    except verbs.VerbError as error:
        raise refused(error, as_json=as_json) from error


def refused(error: VerbError, *, as_json: bool) -> typer.Exit:
    """What the runner refuses, with its remedy: exit code 2 where the command was wrong, 1 otherwise."""
    code = EXIT_USAGE if error.code == "usage" else EXIT_FAILED
    return fail(f"{error.text} {error.remedy}".strip(), code, as_json=as_json)


def summary_of(run_dir: Path) -> RunSummary:
    from eagle3.runner import state

    return RunSummary.model_validate(state.summary(run_dir, time.time()))


def spec_in(run_dir: Path, *, as_json: bool) -> RunSpec:
    """The spec of a run; ends the command where it cannot be used."""
    from eagle3.failures import read_spec
    from eagle3.stages.context import StageError

    try:
        return read_spec(run_dir / "spec.toml")
    except StageError as error:
        raise fail(str(error), as_json=as_json) from error


def launch_of(spec: RunSpec) -> dict[str, Any]:
    """What the runner needs to start a run with this very package, installed or not."""
    home = str(Path(__file__).resolve().parents[2])
    return launch_request(spec, default_python=sys.executable, pythonpath=home)


def actor() -> str:
    """Who is asking, for events and records."""
    return getpass.getuser()
