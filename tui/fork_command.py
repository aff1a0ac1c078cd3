"""``eagle3-tui fork``: a new run from a stage or a checkpoint of another, without a screen."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3.core.lineage import ForkError
from eagle3.core.presets import SpecError
from eagle3.core.readiness.wants import wants
from remote.errors import ContainerError
from tui import plan
from tui.check_command import refuse_red, report_of
from tui.forking import planned
from tui.run_secrets import AskValue, values_of

if TYPE_CHECKING:
    from tui.oneshot import Talk


@dataclass(frozen=True)
class Wanted:
    """What to fork: ``origin`` is a stage, "train@STEP", or "" for all that the changed fields leave as it is."""

    run_id: str
    origin: str
    overrides: tuple[str, ...]
    new_id: str
    dry_run: bool = False
    anyway: bool = False
    watch: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


async def fork(talk: Talk, wanted: Wanted, ask: AskValue | None) -> int:
    """Say what is taken over and what runs again, make the new run and start it; with ``dry_run`` only say it."""
    from tui.oneshot import watch

    found = await talk.container.forkable(wanted.run_id)
    try:
        made = planned(found, wanted.origin, wanted.overrides, talk.place.workspace)
    except ForkError as error:
        raise SpecError(str(error)) from error
    told = {
        "takes": made.plan.takes, "partial": made.plan.partial, "again": dict(made.plan.again), "changed": made.plan.changed,
        "checkpoint": made.plan.checkpoint,
    }  # fmt: skip
    words = "\n".join([*made.plan.lines(wanted.run_id), *made.changes])
    if wanted.dry_run:
        talk.say(words, told)
        return 0
    new_id = wanted.new_id or plan.new_run_id(f"{made.spec.size}-fork", time.time())
    known = bool(wanted.new_id) and new_id in {run.run_id for run in await talk.container.runs()}
    report = None
    if not known:  # asking again under an id that is there starts nothing, so nothing has to be ready for it
        facts = await talk.container.facts(wants(made.spec, made.spec.workspace, taken=made.plan.takes))
        report = report_of(talk, made.spec, facts, deep=False)
        refuse_red(talk, made.spec, report, anyway=wanted.anyway)
    missing = [name for name in made.secrets if name not in wanted.secrets]
    if missing and ask is None:
        options = " ".join(f"--secret {name}" for name in missing)
        text = f"{wanted.run_id} was launched with secrets that no file keeps: {', '.join(missing)}."
        raise ContainerError("usage", text, f"Fork it with {options}.")
    # An empty environment: the container's word is no leave to send it variables of ours.
    secrets = {**wanted.secrets, **await values_of(missing, ask, {})}
    talk.note(words)
    await talk.container.fork(wanted.run_id, new_id, made.spec, made.plan, getpass.getuser())
    ack = await talk.container.launch(
        made.spec, new_id, getpass.getuser(), report=report.model_dump(mode="json") if report else None, secret_env=secrets
    )
    started = plan.launched_words(ack, new_id, talk.place.name)
    if wanted.watch:
        talk.note(started)
        return await watch(talk, new_id, 5.0)
    talk.say(started, {**ack, **told})
    return 0
