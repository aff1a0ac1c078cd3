"""``eagle3 prefetch``: what a run needs from elsewhere, on this machine before the paid hours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3.commands import spec as spec_commands
from eagle3.commands.common import DEFAULT_WORKSPACE, Json, Machine, Overrides, Size, Target, Workspace, fail
from eagle3.core.wording import bytes_label

if TYPE_CHECKING:
    from eagle3.core.spec import RunSpec

Say = Callable[[str], None]


def prefetch(
    source: spec_commands.Source = None,
    size: Size = "pilot",
    target: Target = "smollm2-135m",
    machine: Machine = "cpu",
    overrides: Overrides = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    environments: Annotated[bool, typer.Option("--environments", help="also build the worker's Python environment")] = False,
    options: Annotated[
        list[str] | None, typer.Option("--pip", metavar="OPTION", help="where its packages come from, such as --index-url=URL")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="only say what is missing, how large it is, and whether there is room")] = False,
    as_json: Json = False,
) -> None:
    """Bring the target, and with --environments the worker's packages, onto this machine: size and room first; asked again
    it goes on where it was interrupted. Prompts are counted, and vLLM's environment is yours: neither is brought."""
    spec = spec_commands.read(source, size, target, machine, overrides, workspace, as_json=as_json)
    spec = spec.model_copy(update={"workspace": workspace})

    def say(text: str) -> None:
        typer.echo(text, err=as_json)

    told = _target(spec, say, dry_run=dry_run, as_json=as_json)
    told["prompts"] = _prompts(spec, say)
    if environments:
        told["environment"] = _environment(spec, options or [], say, dry_run=dry_run, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(told))
        return
    if told["there"]:
        typer.echo(f"{spec.target.name} is at {told['folder']}, whole.")
    if (told.get("environment") or {}).get("there"):
        typer.echo(f"The environment is ready: --set worker_python={told['environment']['python']}")
        if not spec.server_python:
            typer.echo("It has no vLLM in it: --set server_python= names the Python that has.")


def _target(spec: RunSpec, say: Say, *, dry_run: bool, as_json: bool) -> dict[str, Any]:
    from eagle3 import hub
    from eagle3.targets import TargetError, fetch, model_dir

    folder = model_dir(spec.target.model)
    scheme, _, where = spec.target.source.partition(":")
    told: dict[str, Any] = {"v": 1, "target": spec.target.name, "folder": str(folder), "there": folder.is_dir(), "source": where}
    try:
        if scheme == "hub" and not told["there"]:
            found = hub.listing(where)
            missing = hub.missing_bytes(found, folder)
            told |= {"bytes": found.bytes, "missing_bytes": missing, "files": len(found.files), "commit": found.commit}
            say(f"{found.repo}: {len(found.files)} files, {bytes_label(found.bytes)}; {bytes_label(missing)} to download.")
            if short := hub.no_room(found, folder):
                raise fail(short, as_json=as_json)
        if not dry_run:
            fetch(spec.target.name, spec.target.source, folder, say)
            told["there"] = True
    except (hub.HubError, TargetError) as error:
        raise fail(str(error), as_json=as_json) from error
    return told


def _prompts(spec: RunSpec, say: Say) -> dict[str, Any]:
    """How many prompts the spec asks for and how many there are; where they are too few, prepare would refuse them: said."""
    from eagle3.stages.context import StageError
    from eagle3.stages.prepare import named

    asked = spec.data.train_prompts + spec.data.heldout_prompts
    try:
        there = len(named(spec)[1])
    except StageError as error:
        say(str(error))
        return {"asked": asked, "there": 0}
    if there < asked:
        say(f"The run asks for {asked} prompts and there are {there}: have a file of them here, and name it as data.prompts.")
    return {"asked": asked, "there": there}


def _environment(spec: RunSpec, options: list[str], say: Say, *, dry_run: bool, as_json: bool) -> dict[str, Any]:
    from eagle3.environments import NotReady, build, planned

    args = {"what": "worker", "options": options}
    try:
        plan = planned(spec.workspace, spec.device, args)
        if not plan["there"]:
            say(f"To build: {plan['text']}; about {bytes_label(plan['needs_bytes'])}.")
            if not dry_run:
                build(spec.workspace, plan, args, say)
                plan["there"] = True
    except NotReady as error:
        raise fail(str(error), as_json=as_json) from error
    except KeyboardInterrupt as error:
        raise fail("No longer followed; the build goes on. The same command joins it.", as_json=as_json) from error
    return {name: plan[name] for name in ("folder", "python", "there", "needs_bytes")}
