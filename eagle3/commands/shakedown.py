"""``eagle3 shakedown``: a few minutes at the run's full shape before its paid hours."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.commands import spec as spec_commands
from eagle3.commands.common import (
    DEFAULT_WORKSPACE,
    EXIT_USAGE,
    Json,
    Machine,
    Overrides,
    Secrets,
    Size,
    Target,
    Workspace,
    actor,
    fail,
    spec_in,
)
from eagle3.commands.following import checked, start
from eagle3.core.estimate import estimate
from eagle3.core.records import RunSummary
from eagle3.core.run_states import LIVE_STATES
from eagle3.core.wording import duration_label, progress_line

if TYPE_CHECKING:
    from eagle3.core.spec import RunSpec

LIMIT_FACTOR = 3.0
"""A shakedown may take so many times its estimate, whose rates may be derived ones,"""
LEAST_LIMIT_S = 1200.0
"""and at least so long."""
TELL_EVERY_S = 5.0


def shakedown(
    source: spec_commands.Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    run_id: Annotated[str, typer.Option("--id", help="go on with this shakedown, or name it; it begins with 'shakedown-'")] = "",
    limit_min: Annotated[float, typer.Option(min=0, help="minutes it may take; 0: three times its estimate, at least 20")] = 0.0,
    secret: Secrets = None,
    as_lines: Annotated[bool, typer.Option("--lines", hidden=True, help="every line as JSON, the report last")] = False,
    as_json: Json = False,
) -> None:
    """Run a spec's full shape for some minutes: longest prompts, one save, one kill, one resume, one served draft.

    Replaces estimated rates by measured ones and says what the whole run will take. Exit code 1 where something fails.
    """
    full = spec_commands.read(source, size, target, machine, overrides, workspace, as_json=as_json)
    full = full.model_copy(update={"workspace": workspace, "forked_from": ""})
    name = run_id or f"shakedown-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if not name.startswith("shakedown-"):
        text = f"'{name}' is not the id of a shakedown; give one that begins with 'shakedown-'."
        raise fail(text, EXIT_USAGE, as_json=as_json)
    if problems := estimate(full).problems:
        raise fail(problems[0], EXIT_USAGE, as_json=as_json)

    def say(text: str) -> None:
        typer.echo(json.dumps({"text": text}) if as_lines else text, err=as_json)

    told = _do(full, name, secret or [], limit_min * 60, say, as_json=as_json)
    if as_json or as_lines:
        typer.echo(json.dumps({"report": told} if as_lines else told))
    if not told["passed"]:
        raise typer.Exit(1)


def _do(
    full: RunSpec, name: str, secret_names: list[str], limit_s: float, say: Callable[[str], None], *, as_json: bool
) -> dict[str, Any]:
    """The shakedown from its start, or from where it stands, to its report."""
    from eagle3.core.rates import rates
    from eagle3.core.shakedown import as_rows, shortened
    from eagle3.measured import rates_of
    from eagle3.runner import rundir
    from eagle3.shakedown import doing, prompts, seeing
    from eagle3.stages.context import StageError
    from eagle3.targets import model_dir

    home = Path(full.workspace).expanduser().absolute()
    run_dir = home / "runs" / name
    sure_tokens = 0
    if run_dir.is_dir():
        short = spec_in(run_dir, as_json=as_json)
    else:
        file = home / "shakedowns" / f"{name}.jsonl"
        try:
            chosen = prompts.write(full, model_dir(full.target.model), file, prompts.prompts_of(full))
        except StageError as error:
            raise fail(str(error), as_json=as_json) from error
        short, sure_tokens = shortened(full, str(file)), chosen.sure_tokens
        about = "" if chosen.exact else " at most (by its bytes: the target's tokenizer is not here)"
        say(f"{chosen.prompts} prompts, the longest of {chosen.longest_tokens:,} tokens{about}; prompts in {file}.")
    known = rates_of(home, full)
    before = estimate(full, known)
    limit_s = limit_s or max(LEAST_LIMIT_S, LIMIT_FACTOR * estimate(short, known).seconds)
    began = partial(start, full.workspace, name, short, secret_names, detach=True, quiet=True, as_json=as_json)
    there = run_dir.is_dir()
    if not there:
        # Told and kept, and not refused: what fails here is what a shakedown is to find.
        began(resume=False, report=checked(short, anyway=True, as_json=as_json))
        doing.note(run_dir, chosen_tokens=sure_tokens)
        doing.note(run_dir, rates=as_rows(rates(full, known)), seconds_before=before.seconds, full=full.model_dump(mode="json"))
    say(f"{name} runs in {run_dir}; it may take {duration_label(limit_s)}.")
    try:
        summary = doing.carry_out(
            run_dir, lambda: began(resume=True), limit_s=limit_s, actor=actor(), say=say, told=_teller(say), again=there
        )
    except doing.OverTime as error:
        say(str(error))
        summary = _summary(run_dir)
    if summary["state"] != "finished":
        say(f"{name}: {summary['state_text']} Its log: {run_dir / 'attempts' / str(summary['attempt']) / 'run.log'}")
    told = seeing.report(run_dir, short, full, summary, before, estimate(full, rates_of(home, full)))
    told["seconds_before"] = round(float(rundir.read_object(run_dir / doing.FILE).get("seconds_before") or before.seconds), 1)
    doing.note(run_dir, report=told)
    for line in seeing.lines(told):
        say(line)
    return told


def _summary(run_dir: Path) -> dict[str, Any]:
    from eagle3.runner import state

    return state.summary(run_dir, time.time())


def _teller(say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """Says a line of progress every few seconds, where there is a new one."""
    last, line = -TELL_EVERY_S, ""

    def tell(summary: dict[str, Any]) -> None:
        nonlocal last, line
        if summary["state"] not in LIVE_STATES or time.monotonic() - last < TELL_EVERY_S:
            return
        last = time.monotonic()
        if (now_line := progress_line(RunSummary.model_validate(summary))) != line:
            say(line := now_line)

    return tell
