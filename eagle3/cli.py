"""The command line in the container: ``eagle3 check|run|resume|stop|status|ls|spec|target``. Thin: it asks the runner.

Exit codes: 0 fine, 1 a run failed, 2 wrong usage. Nothing here imports torch; the worker does, in its own process.
"""

from __future__ import annotations

import getpass
import json
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.core.launching import launch_request, new_run_id
from eagle3.core.presets import SpecError, parse_override, resolve
from eagle3.core.records import LIVE_STATES, RunSummary
from eagle3.core.spec import RunSpec
from eagle3.core.wording import STATE_WORDS, progress_line, result_of

if TYPE_CHECKING:
    from eagle3.runner.errors import VerbError

EXIT_FAILED, EXIT_USAGE = 1, 2

HELP = "Start, stop and read runs on this machine. Exit codes: 0 fine, 1 a run failed, 2 wrong usage."

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=HELP)

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Workspace = Annotated[str, typer.Option(help="folder that holds the runs")]
RunId = Annotated[str, typer.Argument(help="run id, as `eagle3 ls` shows it")]
Size = Annotated[str, typer.Option(help="preset of numbers")]
Target = Annotated[str, typer.Option(help="preset of the target model")]
Machine = Annotated[str, typer.Option(help="preset of the machine")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="override a field; repeatable")]

PATH_FIELDS = frozenset({"data.prompts", "target.model"})

DEFAULT_WORKSPACE = "~/eagle3"


def fail(text: str, code: int = EXIT_FAILED, *, as_json: bool = False) -> typer.Exit:
    """Say one sentence on stderr (and as JSON on stdout where asked) and give back the exit."""
    typer.echo(text, err=True)
    if as_json:
        typer.echo(json.dumps({"error": text}))
    return typer.Exit(code)


def spec_of(size: str, target: str, machine: str, overrides: list[str] | None, *, as_json: bool, **more: Any) -> RunSpec:
    try:
        pairs = {field: from_here(field, value) for field, value in map(parse_override, overrides or [])}
        return resolve(size, target, machine, {**more, **pairs})
    except SpecError as error:
        raise fail(str(error), EXIT_USAGE, as_json=as_json) from error


def from_here(field: str, value: Any) -> Any:
    """A path of this command line, made absolute: the worker runs in another folder."""
    if field in PATH_FIELDS and isinstance(value, str) and not value.startswith("~") and Path(value).exists():
        return str(Path(value).absolute())
    return value


@app.command()
def check(
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    deep: Annotated[bool, typer.Option("--deep", help="run the heavy probes too: minutes; progress on stderr")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    as_json: Json = False,
) -> None:
    """Whether a run can be started here: every check with its evidence and what to do. Exit code 1 where not."""
    from eagle3 import checking
    from eagle3.core.readiness import words

    spec = spec_of(size, target, machine, overrides, as_json=as_json, workspace=workspace)
    asking = partial(ask, as_json=as_json)
    facts = checking.light(spec, asking)
    if deep:
        facts |= checking.deep(spec, asking, f"deep-{secrets.token_hex(6)}", partial(typer.echo, err=True))
    report = checking.judged(facts, spec, with_deep=deep)
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        typer.echo(words.markdown(report).rstrip() if markdown else "\n".join(words.lines(report)))
    if report.verdict == "not ready":
        raise typer.Exit(EXIT_FAILED)


@app.command()
def run(
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    run_id: Annotated[str | None, typer.Option(help="id of the run; asking again under it never starts a second")] = None,
    detach: Annotated[bool, typer.Option(help="return once it has started")] = False,
    as_json: Json = False,
) -> None:
    """Start a run, then follow it; hanging up ends only the follower."""
    spec = spec_of(size, target, machine, overrides, as_json=as_json, workspace=workspace)
    name = run_id or new_run_id(spec, time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(2))
    start(spec.workspace, name, spec, resume=False, detach=detach, as_json=as_json)


@app.command()
def resume(
    run_id: RunId,
    workspace: Workspace = DEFAULT_WORKSPACE,
    verify: Annotated[bool, typer.Option(help="also a finished run: make again what is no longer whole")] = False,
    detach: Annotated[bool, typer.Option(help="return once it has started")] = False,
    as_json: Json = False,
) -> None:
    """Start the next attempt of a run that has ended; finished stages are not repeated."""
    from eagle3.failures import read_spec
    from eagle3.stages.context import StageError

    run_dir = directory(workspace, run_id, as_json=as_json)
    if summary_of(run_dir).state == "finished" and not verify:
        text = f"{run_id} has finished, so there is nothing to resume; --verify makes again what is no longer whole."
        raise fail(text, EXIT_USAGE, as_json=as_json)
    try:
        spec = read_spec(run_dir / "spec.toml")
    except StageError as error:
        raise fail(str(error), as_json=as_json) from error
    start(workspace, run_id, spec, resume=True, detach=detach, as_json=as_json)


@app.command()
def stop(
    run_id: RunId,
    workspace: Workspace = DEFAULT_WORKSPACE,
    mode: Annotated[str, typer.Option(help="now, or after-checkpoint")] = "now",
    as_json: Json = False,
) -> None:
    """Stop a run: now (TERM, grace, KILL) or after its next checkpoint."""
    if mode not in ("now", "after-checkpoint"):
        raise fail(f"'{mode}' is not a way to stop; say --mode now or --mode after-checkpoint.", EXIT_USAGE, as_json=as_json)
    reply = ask("stop", {"workspace": workspace, "run_id": run_id, "mode": mode, "actor": actor()}, as_json=as_json)
    ended = f"{run_id} has ended already: {reply['state']}."
    asked = f"Asked {run_id} to stop ({reply['mode']})."
    typer.echo(json.dumps(reply) if as_json else ended if reply["already"] else asked)


@app.command()
def status(run_id: RunId, workspace: Workspace = DEFAULT_WORKSPACE, as_json: Json = False) -> None:
    """What is known of one run."""
    summary = summary_of(directory(workspace, run_id, as_json=as_json))
    if as_json:
        typer.echo(summary.model_dump_json())
        return
    typer.echo(progress_line(summary))
    if summary.state_text not in ("", summary.state):
        typer.echo(summary.state_text)


@app.command("ls")
def list_runs(workspace: Workspace = DEFAULT_WORKSPACE, as_json: Json = False) -> None:
    """Every run of a workspace, newest first."""
    runs = [RunSummary.model_validate(r) for r in ask("list", {"workspace": workspace}, as_json=as_json)["runs"]]
    if as_json:
        typer.echo(json.dumps([r.model_dump() for r in runs]))
        return
    if not runs:
        typer.echo(f"No runs in {workspace} yet; `eagle3 run` starts one.")
    for summary in runs:
        typer.echo(progress_line(summary))


@app.command()
def spec(
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """The resolved RunSpec, as a run would be started with it."""
    resolved = spec_of(size, target, machine, overrides, as_json=as_json)
    typer.echo(resolved.model_dump_json() if as_json else resolved.to_toml())


@app.command()
def target(name: Annotated[str, typer.Argument(help="preset of the target model")]) -> None:
    """Bring a target onto this machine, once."""
    from eagle3.targets import TargetError, obtain

    try:
        obtain(name, typer.echo)
    except SpecError as error:
        raise fail(str(error), EXIT_USAGE) from error
    except TargetError as error:
        raise fail(str(error)) from error


@app.command(hidden=True)
def probe(
    wants: Annotated[Path, typer.Option(help="JSON file that says what is wanted")],
    section: Annotated[list[str] | None, typer.Option(help="only this section of the deep facts; repeatable")] = None,
) -> None:
    """The deep probes of a readiness check, one JSON line a section."""
    from eagle3.readiness.__main__ import main as probe_all

    raise typer.Exit(probe_all(["--wants", str(wants), *(word for name in section or () for word in ("--section", name))]))


@app.command(hidden=True)
def work(run_dir: Path) -> None:
    """The worker of one attempt; started by the supervisor."""
    from eagle3.work import work as work_on

    raise typer.Exit(work_on(run_dir.resolve()))


def start(workspace: str, run_id: str, spec: RunSpec, *, resume: bool, detach: bool, as_json: bool) -> None:
    """Launch or resume through the runner, then follow."""
    from eagle3 import checking

    report = None
    if not resume:
        # The run keeps what it was started under; whether that is good enough is for those who ask `eagle3 check`.
        report = checking.judged(checking.light(spec, partial(ask, as_json=as_json)), spec, with_deep=False)
        typer.echo(f"{report.verdict}: {report.verdict_text}", err=True)
    # The worker must find this very package, installed or not.
    home = str(Path(__file__).resolve().parent.parent)
    request = {
        "workspace": workspace,
        "run_id": run_id,
        "spec_toml": spec.to_toml(),
        "launch": launch_request(spec, default_python=sys.executable, pythonpath=home),
        "report": report.model_dump(mode="json") if report else None,
        "actor": actor(),
        "resume": resume,
    }
    ack = ask("launch", request, as_json=as_json)
    run_dir = Path(ack["run_dir"])
    typer.echo(
        f"{run_id} {'goes on' if resume else 'has started'} in {run_dir} (attempt {ack['attempt']}).", err=detach and as_json
    )
    if detach:
        if as_json:
            typer.echo(json.dumps(ack))
        return
    follow(run_dir, as_json=as_json)


def follow(run_dir: Path, *, as_json: bool, every_s: float = 5.0) -> None:
    """Print a progress line every few seconds until the run has ended, then its result."""
    line = ""
    try:
        while (summary := summary_of(run_dir)).state in LIVE_STATES:
            if (now_line := progress_line(summary)) != line:
                typer.echo(line := now_line)
            time.sleep(every_s)
    except KeyboardInterrupt:
        typer.echo(f"\nNo longer following; {run_dir.name} goes on. `eagle3 stop {run_dir.name}` stops it.")
        return
    from eagle3.runner import rundir

    result = result_of(summary, rundir.read_json(run_dir / "result.json") if summary.state == "finished" else None)
    if as_json:
        typer.echo(result.model_dump_json(exclude={"v"}))
    else:
        typer.echo(f"{run_dir.name}: {STATE_WORDS[summary.state][1]}. {result.verdict_text}")
    if summary.state != "finished":
        typer.echo(f"Its log: {run_dir / 'attempts' / str(summary.attempt) / 'run.log'}", err=True)
        raise typer.Exit(EXIT_FAILED)


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


def actor() -> str:
    """Who is asking, for events and records."""
    return getpass.getuser()


def main() -> None:
    """Entry point of the console script."""
    app()
