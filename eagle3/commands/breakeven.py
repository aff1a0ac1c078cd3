"""``eagle3 breakeven``: the acceptance length that a draft must reach here, before anything is trained."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from types import FrameType

import typer

from eagle3.commands.common import DEFAULT_WORKSPACE, Json, Machine, Overrides, Size, Target, Workspace, fail
from eagle3.commands.spec import Source, read


def breakeven(
    source: Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    as_json: Json = False,
) -> None:
    """Two starts of the server and a few short loads: from which acceptance length on a draft pays, at each concurrency. Says
    first how long that takes."""
    from eagle3 import break_even
    from eagle3.measured import rates_of
    from eagle3.stages.context import StageError, Stopped

    spec = read(source, size, target, machine, overrides, workspace, as_json=as_json)
    spec = spec.model_copy(update={"workspace": workspace})
    typer.echo(break_even.expected(spec, rates_of(Path(workspace).expanduser(), spec))[1], err=True)
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the stages log; stdout is for the result
            found = break_even.measure(spec, lambda: bool(asked))
    except StageError as error:
        raise fail(str(error), as_json=as_json) from error
    except Stopped:
        raise fail("Stopped; nothing is left running, and nothing was put down.", as_json=as_json) from None
    typer.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
