"""Forking a run: where to begin, which fields to change, and what that takes over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.core import presets
from eagle3.core.estimate import estimate
from eagle3.core.lineage import ForkError, ForkPlan, forked, origin_of
from eagle3.core.presets import SpecError
from eagle3.core.records import Forkable
from eagle3.core.spec import STAGES, RunSpec
from tui.fields import every, listed
from tui.formats import bytes_label, one_line


@dataclass(frozen=True)
class Fork:
    """A fork that can be made: of which run, with which spec, and what it takes over."""

    parent: str
    spec: RunSpec
    plan: ForkPlan
    changes: tuple[str, ...]
    """What differs from the parent, as lines."""
    secrets: tuple[str, ...] = ()

    def rows(self, host: str, run_id: str, free: str) -> list[tuple[str, str]]:
        """What a confirmation shows: what is taken over, what is new, where it goes. ``free``: what is free there, in words."""
        again = [
            (("Runs again" if number == 0 else ""), one_line(why, 300)) for number, why in enumerate(self.plan.again.values())
        ]
        changed = [(("Changes" if number == 0 else ""), one_line(line, 200)) for number, line in enumerate(self.changes)]
        taken = ", ".join(self.plan.takes) or "nothing"
        partly = (
            [("In part", f"{', '.join(self.plan.partial)}: what is there of them is gone on from")] if self.plan.partial else []
        )
        needs = f"at most {bytes_label(estimate(self.spec, taken=self.plan.takes).peak_bytes)} beside what is linked; {free}"
        return [
            ("Host", host), ("From", one_line(self.spec.forked_from)), ("Takes over", taken), *partly, *again,
            *(changed or [("Changes", "no field")]), ("Disk", needs), ("New run", run_id),
        ]  # fmt: skip


def origins(found: Forkable) -> list[tuple[str, str]]:
    """Where a fork may begin: (the word for it, what that means). The newest checkpoint first, where there is one."""
    steps = [
        (f"train@{step}", f"the training goes on from the checkpoint of step {step}") for step in reversed(found.checkpoints)
    ]
    stages = [
        (stage, f"{stage} and all after it start from nothing")
        for number, stage in enumerate(STAGES)
        if all(before in found.stages for before in STAGES[:number])
    ]
    return [*steps, ("", "all that the changed fields leave as it is is taken over"), *reversed(stages)]


def planned(found: Forkable, origin: str, lines: Sequence[str], workspace: str) -> Fork:
    """The fork that begins at ``origin`` with the fields of ``lines`` (``train.learning_rate=5e-4``) changed.

    Raises SpecError and ForkError, each in one sentence.
    """
    try:
        parent = RunSpec.from_toml(found.spec_toml)
    except ValueError as error:
        raise ForkError(
            f"The spec.toml of {found.run_id} cannot be read by this console: {one_line(str(error), 200)}."
        ) from error
    pairs = {}
    for line in filter(None, (line.strip() for line in lines)):
        name, value = presets.parse_override(line)
        pairs[name] = every()[name].value(line.partition("=")[2]) if name in every() else value
    if "workspace" in pairs:
        raise SpecError("workspace: a fork stands in the workspace of its parent, whose files it links to.")
    stage, step = origin_of(origin)
    spec, plan = forked(
        parent, found.run_id, pairs, workspace=workspace, finished=found.stages, checkpoints=found.checkpoints, from_stage=stage,
        from_checkpoint=step, states_missing=found.states_missing,
    )  # fmt: skip
    if problems := estimate(spec).problems:
        raise SpecError(problems[0])
    same_place = parent.model_copy(update={"workspace": spec.workspace, "forked_from": spec.forked_from})
    return Fork(found.run_id, spec, plan, tuple(listed(presets.difference(same_place, spec))), tuple(found.secret_env))
