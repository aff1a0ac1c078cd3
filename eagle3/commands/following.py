"""Starting a run from a bare shell, and following it until it ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eagle3.commands.common import EXIT_FAILED, EXIT_USAGE, actor, ask, fail, launch_of, summary_of
from eagle3.core import evaluation, published
from eagle3.core.run_states import LIVE_STATES
from eagle3.core.spec import RunSpec
from eagle3.core.wording import STATE_WORDS, progress_line, result_of

if TYPE_CHECKING:
    from eagle3.core.readiness.report import Report


def secrets_of(run_dir: Path) -> list[str]:
    """The secrets that a run was started with and that this shell has; the runner names those that are missing."""
    from eagle3.runner import preflight, rundir

    return [name for name in preflight.secret_names(rundir.read_object(run_dir / "launch.json")) if name in os.environ]


def need_secrets(names: Iterable[str], *, as_json: bool) -> None:
    """End the command where this shell lacks one of the secrets."""
    for name in names:
        if name not in os.environ:
            text = f"The secret {name} is not set in this shell; export it first: its value is not given on the command line."
            raise fail(text, EXIT_USAGE, as_json=as_json)


def checked(spec: RunSpec, *, anyway: bool, as_json: bool, taken: Collection[str] = ()) -> Report:
    """The readiness that a run is to be started under, its verdict told. What is not ready ends the command with what fails,
    unless ``anyway``, as in the console. ``taken``: the stages that a fork takes over."""
    from eagle3 import checking

    report = checking.judged(checking.light(spec, partial(ask, as_json=as_json), taken), spec, with_deep=False)
    if report.verdict != "not ready":
        typer.echo(f"{report.verdict}: {report.verdict_text}", err=True)
        return report
    failing = [check for check in report.checks if check.status == "fail"]
    named = "; ".join(f"{check.id}: {check.evidence or check.title}" for check in failing)
    text = f"This machine is not ready for the {spec.size}: {named or report.verdict_text}."
    if not anyway:
        first = " ".join([check.remedy for check in failing if check.remedy][:1])
        raise fail(f"{' '.join([text, first]).rstrip()} --anyway starts nevertheless.", as_json=as_json)
    typer.echo(f"{text} Starting anyway.", err=True)
    return report


def start(
    workspace: str,
    run_id: str,
    spec: RunSpec,
    secret_names: list[str],
    *,
    resume: bool,
    detach: bool,
    as_json: bool,
    report: Report | None = None,
    quiet: bool = False,
) -> None:
    """Launch or resume through the runner, then follow. The secrets' values come from this shell's environment. ``report``: what
    the run is started under. ``quiet``: say nothing of the start, which the caller does."""
    need_secrets(secret_names, as_json=as_json)
    request = {
        "workspace": workspace,
        "run_id": run_id,
        "spec_toml": spec.to_toml(),
        "launch": launch_of(spec),
        "report": report.model_dump(mode="json") if report else None,
        "actor": actor(),
        "resume": resume,
        "secret_env": {name: os.environ[name] for name in secret_names},
    }
    ack = ask("launch", request, as_json=as_json)
    run_dir = Path(ack["run_dir"])
    if quiet:
        return
    waits = ack["state"] == "starting"
    how = "starts by itself when what yields to it has stopped," if waits else "goes on" if resume else "has started"
    typer.echo(f"{run_id} {how} in {run_dir} (attempt {ack['attempt']}).", err=detach and as_json)
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
        for more in evaluation.lines(result.curve, result.kinds, result.temperatures) + published.sentences(result.published):
            typer.echo(f"  {more}")
    if summary.state != "finished":
        typer.echo(f"Its log: {run_dir / 'attempts' / str(summary.attempt) / 'run.log'}", err=True)
        raise typer.Exit(EXIT_FAILED)
