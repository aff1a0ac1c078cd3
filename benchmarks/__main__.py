"""The command line: which parts to measure, the table, and the JSON file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.figures import Figures, table
from benchmarks.options import Options

PARTS = {
    "link": "benchmarks.link.measure",
    "console": "benchmarks.console.measure",
    "pilot": "benchmarks.pipeline.pilot",
    "extraction": "benchmarks.pipeline.extraction",
    "training": "benchmarks.pipeline.training",
    "quality": "benchmarks.quality.measure",
}
"""Name -> module with ``measure(options) -> Figures``, imported when it is measured."""

BY_NAME_ONLY = ("quality",)
"""What takes too long to be measured unasked (`make bench-quality`)."""


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"which to measure: {', '.join(PARTS)}; where left out, all but quality")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures into this file too")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="only see whether it works: few and short measurements")] = False,
    watch_s: Annotated[float, typer.Option(help="link: seconds to watch a run before extrapolating to a day")] = 600.0,
    run_dir: Annotated[
        Path | None, typer.Option("--run", help="pilot, extraction, training: a finished run to measure on instead of making one")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="quality: where its runs stand and stay; asked again, they go on")
    ] = None,
) -> None:
    """Measure, and print a table. A missed target is told, not an error: exit code 0."""
    chosen = names or [name for name in PARTS if name not in BY_NAME_ONLY]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise typer.BadParameter(f"There is no benchmark {unknown[0]!r}; there are: {', '.join(PARTS)}.")
    watched_s = min(watch_s, 5.0) if quick else watch_s
    options = Options(quick=quick, watch_s=watched_s, run_dir=run_dir, workspace=workspace)
    found: dict[str, Figures] = {}
    for name in chosen:
        found[name] = import_module(PARTS[name]).measure(options)
        Console(width=None if Console().is_terminal else 120).print(table(name, found[name]))
        if json_file is not None:
            written = {part: {title: figure.as_dict() for title, figure in figures.items()} for part, figures in found.items()}
            json_file.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
