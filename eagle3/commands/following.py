"""Starting a run from a bare shell, and following it until it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import typer

from eagle3.commands.common import EXIT_FAILED, actor, ask, launch_of, summary_of
from eagle3.core.records import LIVE_STATES
from eagle3.core.spec import RunSpec
from eagle3.core.wording import STATE_WORDS, progress_line, result_of


def start(workspace: str, run_id: str, spec: RunSpec, *, resume: bool, detach: bool, as_json: bool) -> None:
    """Launch or resume through the runner, then follow."""
    request = {
        "workspace": workspace,
        "run_id": run_id,
        "spec_toml": spec.to_toml(),
        "launch": launch_of(spec),
        "report": None,
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
