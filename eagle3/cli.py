"""The command line in the container: ``eagle3 check|run|resume|fork|stop|status|ls|spec|target|…``. Thin: it asks the runner.

Exit codes: 0 fine, 1 a run failed, 2 wrong usage. Nothing here imports torch; the worker does, in its own process.
"""

from __future__ import annotations

import json
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eagle3.commands import spec as spec_commands
from eagle3.commands.breakeven import breakeven
from eagle3.commands.common import (
    DEFAULT_WORKSPACE,
    EXIT_FAILED,
    EXIT_USAGE,
    Anyway,
    Json,
    Machine,
    Overrides,
    RunId,
    Secrets,
    Size,
    Target,
    Workspace,
    actor,
    ask,
    command_for,
    directory,
    fail,
    spec_in,
    spec_of,
    summary_of,
)
from eagle3.commands.control import checkpoint, pause, restore
from eagle3.commands.control import request as request_of
from eagle3.commands.following import checked, need_secrets, secrets_of, start
from eagle3.commands.fork import fork
from eagle3.commands.importing import import_states
from eagle3.commands.prefetch import prefetch
from eagle3.commands.prune import prune
from eagle3.commands.reproducing import held_against
from eagle3.commands.shakedown import shakedown
from eagle3.core.estimate import break_even_lines, estimate
from eagle3.core.launching import new_run_id
from eagle3.core.presets import SpecError
from eagle3.core.records import RunSummary
from eagle3.core.run_states import LIVE_STATES
from eagle3.core.wording import progress_line, went_on
from eagle3.measured import rates_of
from eagle3.problems_here import problems_here

HELP = "Start, stop and read runs on this machine. Exit codes: 0 fine, 1 a run failed, 2 wrong usage."

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=HELP)
app.add_typer(spec_commands.app, name="spec")
for command in (fork, pause, checkpoint, restore, prune, prefetch, breakeven, shakedown):
    app.command()(command)
app.command("import")(import_states)


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
    source: Annotated[str | None, typer.Option("--spec", help=f"instead of the presets: {spec_commands.WHICH}")] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    run_id: Annotated[str | None, typer.Option(help="id of the run; asking again under it never starts a second")] = None,
    secret: Secrets = None,
    detach: Annotated[bool, typer.Option(help="return once it has started")] = False,
    anyway: Anyway = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="with a run's --spec: refuse where target, prompts or packages are not that run's")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a run, then follow it; hanging up ends only the follower."""
    if exact and source is None:
        raise fail("--exact goes with the --spec of a run.", EXIT_USAGE, as_json=as_json)
    spec = spec_commands.read(source, size, target, machine, overrides, workspace, as_json=as_json)
    if source is not None:
        # The run is this workspace's and its own, wherever its numbers come from.
        spec = spec.model_copy(update={"workspace": workspace, "forked_from": ""})
        spec = held_against(source, spec, workspace, exact=exact, as_json=as_json)
    expected = estimate(spec, rates_of(Path(spec.workspace).expanduser(), spec))
    name = run_id or new_run_id(spec, time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(2))
    # Before anything is made, and before services yield. Asking again under a run's id starts nothing, so nothing must be here.
    there = (Path(spec.workspace).expanduser() / "runs" / name).exists()
    if problems := expected.problems or ([] if there else problems_here(spec)):
        raise fail(problems[0], EXIT_USAGE, as_json=as_json)
    for line in break_even_lines(expected):
        typer.echo(line, err=True)
    names = [*(secret or []), *filter(None, [spec.alerts.webhook_env])]
    need_secrets(names, as_json=as_json)
    report = None if there else checked(spec, anyway=anyway, as_json=as_json)
    start(spec.workspace, name, spec, names, resume=False, detach=detach, as_json=as_json, report=report)


@app.command()
def resume(
    run_id: RunId,
    workspace: Workspace = DEFAULT_WORKSPACE,
    verify: Annotated[bool, typer.Option(help="also a finished run: make again what is no longer whole")] = False,
    secret: Secrets = None,
    detach: Annotated[bool, typer.Option(help="return once it has started")] = False,
    as_json: Json = False,
) -> None:
    """Let a paused run go on, or start the next attempt of one that has ended; finished stages are not repeated."""
    run_dir = directory(workspace, run_id, as_json=as_json)
    summary = summary_of(run_dir)
    if summary.state in LIVE_STATES and summary.paused_at is not None:
        reply = request_of(run_id, workspace, "go-on", lift=summary.pauses_to_lift(), as_json=as_json)
        if not as_json:
            typer.echo(went_on(run_id, reply, f"{command_for('resume', run_id, workspace)} once more"))
        return
    if summary.state == "finished" and not verify:
        text = f"{run_id} has finished, so there is nothing to resume; --verify makes again what is no longer whole."
        raise fail(text, EXIT_USAGE, as_json=as_json)
    names = [*secrets_of(run_dir), *(secret or [])]
    start(workspace, run_id, spec_in(run_dir, as_json=as_json), names, resume=True, detach=detach, as_json=as_json)


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


def main() -> None:
    """Entry point of the console script."""
    app()
