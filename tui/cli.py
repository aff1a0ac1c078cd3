"""The command line ``eagle3-tui``: the console, and the same things without a screen.

    eagle3-tui [HOST …]             open the console on one host or several (what one would give ssh); without one, choose
    eagle3-tui --all                the same on every host that the ssh_config names
    eagle3-tui --local              the same on this machine
    eagle3-tui check|shakedown|launch|resume|fork|runs|watch|stop|support HOST …

Importing this loads neither Textual nor an SSH library; each command loads what it needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A console for training and watching EAGLE-3 draft models. Without a command it opens on HOST, or on this machine "
    "with --local. Exit codes: 0 fine, 1 a check or a run failed, 2 wrong usage, 3 unreachable, 4 refused.",
)

WORDS = typer.Argument(help="HOST, as one would give it to ssh; left out with --local", metavar="[HOST]", show_default=False)
WITH_RUN = typer.Argument(help="HOST (left out with --local) and the run's id", metavar="[HOST] RUN_ID", show_default=False)
Words = Annotated[list[str] | None, WORDS]
RunWords = Annotated[list[str] | None, WITH_RUN]
Local = Annotated[bool, typer.Option("--local", help="this machine as the container, through an SSH server on loopback")]
Workspace = Annotated[str, typer.Option(help="folder in the container that holds the runs")]
Python = Annotated[str, typer.Option(help="interpreter in the container for the helper, and for runs that name none")]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="variable that the worker gets, by name; taken from this environment or asked"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of words")]


SCREENS = ("run", "overview", "readiness", "launch", "runs", "logs", "notes")
THEMES = ("calm", "paper", "contrast", "safe")
LEAST_COLUMNS, LEAST_ROWS = 40, 12
"""The smallest picture in which a screen can be told."""

ELSEWHERE = {
    "spec": "press 3 in the console to see what a launch would do, or use `eagle3 spec` in the container",
    "status": "use `eagle3-tui watch`, or `eagle3 status` in the container",
    "ls": "use `eagle3-tui runs`, or `eagle3 ls` in the container",
    "run": "use `eagle3-tui launch`, or `eagle3 run` in the container",
}
"""Commands of ``eagle3`` that would be taken for a host here -> what to do instead."""


class Usage(Exception):
    """Wrong usage, in one sentence."""


def place(words: Sequence[str] | None, local: bool, more: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The host ("" for this machine) and the ``more`` arguments named after it. Raises Usage."""
    rest = list(words or [])
    if not local and not rest:
        raise Usage("Say which HOST, as you would for ssh, or --local for this machine.")
    host = "" if local else rest.pop(0)
    if len(rest) > len(more):
        raise Usage(f"'{rest[len(more)]}' is one argument too many" + ("; with --local no HOST is given." if local else "."))
    return host, rest


@app.command("open", help="Open the console (the default), on one host or several; without one, choose on a screen.")
def open_console(
    words: Annotated[list[str] | None, typer.Argument(help="hosts, as for ssh", metavar="[HOST]...", show_default=False)] = None,
    all_hosts: Annotated[bool, typer.Option("--all", help="every host that the ssh_config names")] = False,
    local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    run: Annotated[str, typer.Option(help="open this run at once")] = "",
    theme: Annotated[str, typer.Option(help="calm, paper (light), contrast or safe (for the colour-blind)")] = "",
    ascii: Annotated[bool, typer.Option("--ascii", help="only ASCII on the screen")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="look, and change nothing")] = False,
    reduced_motion: Annotated[bool, typer.Option("--reduced-motion", help="nothing moves or blinks")] = False,
) -> None:  # fmt: skip
    from tui.launchpad import open_console as start

    if theme and theme not in THEMES:
        raise Usage(f"There is no theme '{theme}'; --theme takes {', '.join(THEMES)}.")
    options = {"theme": theme, "ascii": ascii, "read_only": read_only, "reduced_motion": reduced_motion}
    hosts = hosts_of(words, local, all_hosts)
    raise typer.Exit(start(hosts, local=local, workspace=workspace, python=python or None, run_id=run, options=options))


def hosts_of(words: Sequence[str] | None, local: bool, all_hosts: bool) -> list[str]:
    """The hosts to open, each once; none: choose. Raises Usage."""
    hosts = list(dict.fromkeys(words or []))
    if local and (hosts or all_hosts):
        raise Usage("With --local no HOST is given; H in the console opens others beside it.")
    if not all_hosts:
        return hosts
    from remote.config import host_names
    from remote.settings import Settings

    named = host_names(Settings())
    if not named and not hosts:
        raise Usage("The ssh_config names no host (patterns do not count); name one.")
    return list(dict.fromkeys([*hosts, *named]))


@app.command(help="Open the console and record what it receives into a file, for `replay`: a demonstration, a bug report.")
def record(
    words: Annotated[list[str] | None, typer.Argument(help="hosts, as for ssh", metavar="[HOST]...", show_default=False)] = None,
    to: Annotated[str, typer.Option(help="file to write; it must not exist yet")] = "",
    local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    run: Annotated[str, typer.Option(help="open this run at once")] = "",
) -> None:  # fmt: skip
    from tui.launchpad import open_console as start

    if not to:
        raise Usage("Say which file to write: eagle3-tui record HOST --to FILE.")
    if Path(to).exists():
        raise Usage(f"{to} exists already; name a new file.")
    if not Path(to).absolute().parent.is_dir():
        raise Usage(f"The folder {Path(to).parent} for the recording does not exist.")
    hosts = hosts_of(words, local, False)
    if not hosts and not local:
        raise Usage("Say which HOST to record, as you would for ssh, or --local for this machine.")
    raise typer.Exit(
        start(hosts, local=local, workspace=workspace, python=python or None, run_id=run, record_to=Path(to).absolute())
    )


@app.command(help="Open the console on a recording: no connection, nothing can be changed, ages by the recording's clock.")
def replay(
    file: Annotated[Path, typer.Argument(help="what `record` or the key W wrote", show_default=False)],
    speed: Annotated[float, typer.Option(help="times as fast as it happened", min=0.1, max=1000)] = 1.0,
    run: Annotated[str, typer.Option(help="open this run at once")] = "",
    theme: Annotated[str, typer.Option(help="calm, paper (light), contrast or safe (for the colour-blind)")] = "",
    ascii: Annotated[bool, typer.Option("--ascii", help="only ASCII on the screen")] = False,
) -> None:
    from tui.launchpad import replay as start

    if theme and theme not in THEMES:
        raise Usage(f"There is no theme '{theme}'; --theme takes {', '.join(THEMES)}.")
    raise typer.Exit(start(file, speed, run_id=run, options={"theme": theme, "ascii": ascii}))


@app.command(help="Whether a run can be started there: every check with its evidence and what to do. Exit code 1 where not.")
def check(
    words: Words = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    size: Annotated[str, typer.Option(help="size to judge for")] = "pilot",
    target: Annotated[str, typer.Option(help="model to judge for; the first preset where left out")] = "",
    machine: Annotated[str, typer.Option(help="machine preset to judge for; by what the host has where left out")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, such as train.max_steps=200")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="run the heavy probes too, minutes; progress on stderr")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown, for a ticket")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    from tui import check_command, oneshot

    host, _ = place(words, local)
    if json and markdown:
        raise Usage("Say --json or --markdown, not both.")
    judged = check_command.Judged(size, target, machine, tuple(overrides or ()))
    where = oneshot.Place(host, local, workspace, python or None)
    raise typer.Exit(oneshot.go(where, json, check_command.check, judged, deep, markdown))


@app.command(help="Check the host, launch a run and print its id. Exit code 1, and no run, where the host is not ready.")
def launch(
    words: Words = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    size: Annotated[str, typer.Option(help="smoke or pilot")] = "pilot",
    target: Annotated[str, typer.Option(help="the model to train a draft for; the first preset where left out")] = "",
    machine: Annotated[str, typer.Option(help="machine preset; by what the host has where left out")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, such as train.max_steps=200")] = None,
    run_id: Annotated[str, typer.Option(help="id of the run; asking again under the same id never starts a second")] = "",
    secret: Secrets = None,
    watch: Annotated[bool, typer.Option("--watch", help="watch it to its end")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="launch although the host is not ready")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    from tui import oneshot

    host, _ = place(words, local)
    wanted = oneshot.Wanted(
        size, target, machine, tuple(overrides or ()), run_id, watch, anyway=anyway, secrets=secret_values(secret)
    )
    raise typer.Exit(oneshot.go(oneshot.Place(host, local, workspace, python or None), json, oneshot.launch, wanted))


@app.command(
    help="Run a spec's full shape there for some minutes: one save, kill, resume, served draft. Exit code 1 where it fails."
)
def shakedown(
    words: Words = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    size: Annotated[str, typer.Option(help="smoke, pilot or full")] = "pilot",
    target: Annotated[str, typer.Option(help="the model to train a draft for; the first preset where left out")] = "",
    machine: Annotated[str, typer.Option(help="machine preset; by what the host has where left out")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, such as train.max_steps=200")] = None,
    run_id: Annotated[str, typer.Option("--id", help="join this shakedown, or name it; begins with 'shakedown-'")] = "",
    secret: Secrets = None, json: Json = False,
) -> None:  # fmt: skip
    from tui import check_command, oneshot, shakedown_command

    host, _ = place(words, local)
    judged = check_command.Judged(size, target, machine, tuple(overrides or ()))
    where = oneshot.Place(host, local, workspace, python or None)
    raise typer.Exit(oneshot.go(where, json, shakedown_command.shakedown, judged, run_id, secret_values(secret)))


@app.command(help="Go on with a run that was stopped, failed or was lost; finished stages are kept.")
def resume(
    words: RunWords = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    secret: Secrets = None,
    watch: Annotated[bool, typer.Option("--watch", help="watch it to its end")] = False, json: Json = False,
) -> None:  # fmt: skip
    from tui import oneshot, questions

    host, rest = place(words, local, ["RUN_ID"])
    if not rest:
        raise Usage("Say which run to resume; `runs` lists them.")
    where = oneshot.Place(host, local, workspace, python or None)
    values = secret_values(secret)
    raise typer.Exit(oneshot.go(where, json, oneshot.resume, rest[0], values, questions.secret_value(), watch))


@app.command(
    help="Start a new run from a stage or a checkpoint of another, with other numbers; its files are linked, not copied."
)
def fork(
    words: RunWords = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    origin: Annotated[str, typer.Option("--from", help="a stage, or train@STEP; left out: all that still holds")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, such as train.max_steps=300")] = None,
    new_id: Annotated[str, typer.Option("--id", help="id of the new run; asking again under it starts no second")] = "",
    secret: Secrets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is taken over, and what runs again and why")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="watch it to its end")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="fork although the host is not ready")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    from tui import fork_command, oneshot, questions

    host, rest = place(words, local, ["RUN_ID"])
    if not rest:
        raise Usage("Say which run to fork; `runs` lists them.")
    wanted = fork_command.Wanted(
        rest[0], origin, tuple(overrides or ()), new_id, dry_run, anyway, watch, secrets=secret_values(secret)
    )
    where = oneshot.Place(host, local, workspace, python or None)
    raise typer.Exit(oneshot.go(where, json, fork_command.fork, wanted, questions.secret_value()))


@app.command(help="Write a redacted bundle about a run, for a bug report: records, ends of logs, facts of the host.")
def support(
    words: RunWords = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    out: Annotated[str, typer.Option(help="file to write; support-RUN_ID.tar.gz where left out")] = "", json: Json = False,
) -> None:  # fmt: skip
    from tui import oneshot
    from tui.support import support as write

    host, rest = place(words, local, ["RUN_ID"])
    if not rest:
        raise Usage("Say which run the report is about; `runs` lists them.")
    path = Path(out or f"support-{rest[0]}.tar.gz")
    if not path.parent.is_dir():
        raise Usage(f"The folder {path.parent} for the bundle does not exist.")
    raise typer.Exit(oneshot.go(oneshot.Place(host, local, workspace, python or None), json, write, rest[0], path))


@app.command(help="List the runs of the workspace.")
def runs(
    words: Words = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "", json: Json = False
) -> None:
    from tui import oneshot

    host, _ = place(words, local)
    raise typer.Exit(oneshot.go(oneshot.Place(host, local, workspace, python or None), json, oneshot.runs))


@app.command(help="Print the progress of a run (the latest where none is named) until it ends. Exit code 1 unless it finished.")
def watch(
    words: RunWords = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    every: Annotated[float, typer.Option(help="seconds between two lines", min=0.2)] = 5.0, json: Json = False,
) -> None:  # fmt: skip
    from tui import oneshot

    host, rest = place(words, local, ["RUN_ID"])
    where = oneshot.Place(host, local, workspace, python or None)
    raise typer.Exit(oneshot.go(where, json, oneshot.watch, rest[0] if rest else "", every))


@app.command(help="Stop a run.")
def stop(
    words: RunWords = None, local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    after_checkpoint: Annotated[bool, typer.Option("--after-checkpoint", help="not now, but after its next checkpoint")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    from tui import oneshot

    host, rest = place(words, local, ["RUN_ID"])
    if not rest:
        raise Usage("Say which run to stop; `runs` lists them.")
    where = oneshot.Place(host, local, workspace, python or None)
    raise typer.Exit(oneshot.go(where, json, oneshot.stop, rest[0], "after-checkpoint" if after_checkpoint else "now"))


@app.command(help="Write a screen of the console to an SVG file.")
def picture(
    words: Annotated[list[str] | None, typer.Argument(metavar="[HOST] RUN_ID OUT.svg", show_default=False)] = None,
    local: Local = False, workspace: Workspace = "~/eagle3", python: Python = "",
    size: Annotated[str, typer.Option(help="columns x rows")] = "120x36",
    screen: Annotated[str, typer.Option(help="overview, readiness, launch, run, runs, logs or notes")] = "run",
) -> None:  # fmt: skip
    host, rest = place(words, local, ["RUN_ID", "OUT.svg"])
    if screen == "readiness" and len(rest) == 1:
        rest.insert(0, "")  # it is about the machine, not about a run
    columns, _, rows = size.partition("x")
    if len(rest) != 2 or not (columns.isdecimal() and rows.isdecimal()):
        raise Usage("Write: eagle3-tui picture [HOST] RUN_ID OUT.svg --size 120x36 (or --local in place of HOST).")
    if int(columns) < LEAST_COLUMNS or int(rows) < LEAST_ROWS:
        raise Usage(f"A picture needs at least {LEAST_COLUMNS} columns and {LEAST_ROWS} rows; --size {size} is too small.")
    if screen not in SCREENS:
        raise Usage(f"There is no screen '{screen}'; --screen takes {', '.join(SCREENS)}.")
    run_id, out = rest
    if not Path(out).parent.is_dir():
        raise Usage(f"The folder {Path(out).parent} for the picture does not exist.")
    from tui.picture import take

    raise typer.Exit(
        take(host, Path(out), local=local, workspace=workspace, python=python or None, run_id=run_id, screen=screen,
             size=(int(columns), int(rows)))
    )  # fmt: skip


def secret_values(words: Sequence[str] | None) -> dict[str, str]:
    """The values of ``--secret NAME``, before anything connects. Raises Usage."""
    import asyncio

    from tui.questions import secret_value
    from tui.run_secrets import SecretError, names_of, values_of

    try:
        return asyncio.run(values_of(names_of(words or ()), secret_value()))
    except SecretError as error:
        raise Usage(str(error)) from error


def open_streams() -> None:
    """Where a stream was closed (as by ``<&-`` or some schedulers), put nothing in its place: the next file or socket would
    get its number otherwise, and every look at ``sys.stdin`` would have to expect None."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Anything that is no command, here or of ``eagle3``, opens the console on it."""
    open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    try:
        if words and words[0] in ELSEWHERE:
            raise Usage(f"There is no command '{words[0]}' here: {ELSEWHERE[words[0]]}.")
        if not words and not sys.stdin.isatty():
            words = ["--help"]
        if not words or (words[0] not in commands and words[0] not in {"--help", "-h"}):
            words.insert(0, "open")
        app(args=words, prog_name="eagle3-tui")
    except Usage as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
