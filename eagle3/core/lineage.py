"""What a run may take over from another: which fields a stage depends on, who reads whose files, and the plan of a fork. Pure.

The worker decides by content (``eagle3.work``); this says beforehand, in words, what it will find, and refuses what cannot be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3.core.presets import difference, override
from eagle3.core.serving import NO_MATTER
from eagle3.core.spec import MODEL_FIELDS, STAGES, RunSpec
from eagle3.core.wording import listed

UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "prepare": (),
    "regenerate": ("prepare",),
    "extract": ("regenerate",),
    "vocabulary": ("regenerate",),
    "train": ("extract", "vocabulary"),
    "evaluate": ("regenerate", "train"),
    "export": ("train", "evaluate"),
}
"""Whose outputs a stage reads: a stage runs again when one of these changed."""

_MODEL = tuple(sorted(f"target.{name}" for name in MODEL_FIELDS))
_STATES = tuple(name for name in _MODEL if name not in ("target.served_name", "target.source"))
BASELINE = (
    "evaluate.prompts", "evaluate.concurrency", "evaluate.concurrencies", "evaluate.max_new_tokens", "evaluate.lossless_prompts",
)  # fmt: skip
"""Fields that make the stage regenerate measure again, but ask for no answer again."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "prepare": ("data.", "target.model"),
    "regenerate": (*_MODEL, "regenerate.max_new_tokens", "regenerate.temperature", "data.seed", "engine", *BASELINE),
    "extract": (*_STATES, "target.auxiliary_layers", "extract.storage", "extract.rank", "extract.world", "engine"),
    "vocabulary": ("vocabulary.", "target.model"),
    "train": ("train.", "devices.train", "target.auxiliary_layers", "target.name", "target.model", "target.draft."),
    "evaluate": ("evaluate.", "server.", *_MODEL, "target.auxiliary_layers", "device", "engine"),
    "export": ("",),
}
"""The fields, or beginnings of fields, that a stage's result depends on. A test holds them against the stages' own word."""

NOT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prepare": ("data.prompt_tokens",),
    "train": (
        "train.checkpoint_every_steps", "train.checkpoint_every_minutes", "train.validate_every_steps", "train.keep_last",
        "train.keep_best", "train.tensorboard", "train.parallel",
    ),
    "evaluate": tuple(f"server.{name}" for name in sorted(NO_MATTER)),
    "export": (
        "workspace", "worker_python", "server_python", "group", "grace_s", "disk_floor_bytes", "forked_from",
        "hardware.", "devices.",
    ),
}  # fmt: skip
"""Those among them that it does not depend on."""

IN_A_CHECKPOINT = ("train.optimizer", "train.kind", "target.draft.", "target.auxiliary_layers")
"""Fields of the stage train that decide what a checkpoint holds."""


class ForkError(ValueError):
    """A fork cannot be: one sentence that names the field or the stage, and what to do."""


@dataclass(frozen=True)
class ForkPlan:
    """``takes``: stages taken over whole. ``partial``: stages that run again and go on from what is there of them (answers,
    states, a checkpoint). ``again``: stage → why it runs again. ``changed``: the fields. ``checkpoint``: the step, if any."""

    takes: tuple[str, ...]
    partial: tuple[str, ...]
    again: Mapping[str, str]
    changed: tuple[str, ...]
    checkpoint: int | None = None

    def lines(self, run_id: str) -> list[str]:
        """The plan in sentences."""
        taken = f"{listed(self.takes)} {'is' if len(self.takes) == 1 else 'are'} taken over from {run_id}" if self.takes else ""
        told = [f"{taken}; the worker checks every file by its hash."] if taken else [f"Nothing is taken over from {run_id}."]
        return told + [f"{why}." for why in self.again.values()]


def depends(stage: str, field: str) -> bool:
    """Whether a stage's result depends on a field (dotted name)."""
    return _among(field, FIELDS[stage]) and not _among(field, NOT_FIELDS.get(stage, ()))


def plan(
    parent: RunSpec,
    child: RunSpec,
    *,
    finished: Collection[str],
    checkpoints: Collection[int],
    from_stage: str | None = None,
    from_checkpoint: int | None = None,
    states_missing: int = 0,
) -> ForkPlan:
    """What a fork of ``parent`` with the spec ``child`` takes over, and what runs again and why.

    ``finished``: the parent's finished stages; ``checkpoints``: the steps of its complete checkpoints. ``from_stage``: this
    stage and all after it start from nothing. ``from_checkpoint``: the training goes on from that step.
    ``states_missing``: how many of the parent's hidden states are pruned or gone; a training that is taken over needs none.

    Raises ForkError.
    """
    if states_missing:
        how = {"checkpoints": checkpoints, "from_stage": from_stage, "from_checkpoint": from_checkpoint}
        trains = "train" in plan(parent, child, finished=finished, **how).again  # type: ignore[arg-type]
        states_missing *= trains
    changed = tuple(name for name in difference(parent, child) if name != "forked_from")
    if from_stage is not None and from_stage not in STAGES:
        raise ForkError(f"There is no stage '{from_stage}'; it is one of {', '.join(STAGES)}.")
    if from_checkpoint is not None:
        if from_stage not in (None, "train"):
            raise ForkError(f"A checkpoint belongs to the stage train, not to {from_stage}; leave --from-stage out.")
        _check_checkpoint(child, changed, checkpoints, from_checkpoint)
    start = STAGES.index(from_stage) if from_stage else STAGES.index("train") if from_checkpoint is not None else len(STAGES)
    again: dict[str, str] = {}
    softly: set[str] = set()
    for number, stage in enumerate(STAGES):
        own = [field for field in changed if depends(stage, field)]
        if number < start < len(STAGES):
            measured_again = BASELINE if stage == "regenerate" else ()
            _check_kept(stage, [field for field in own if field not in measured_again], finished, STAGES[start])
        # Measuring the baseline again leaves the samples as they are: what reads those is kept, if they turn out the same.
        read = [name for name in UPSTREAM[stage] if name in again and name not in softly]
        if stage == "extract" and states_missing and number < start < len(STAGES):
            raise ForkError(
                f"{states_missing} states of that run are pruned or gone, and train needs them: fork --from-stage extract."
            )
        if own and stage != "export":
            again[stage] = f"{listed(own)} {'changes' if len(own) == 1 else 'change'} {stage}: {stage} runs again"
            softly |= {stage} if stage == "regenerate" and set(own) <= set(BASELINE) else set()
        elif stage == "extract" and states_missing and number < start:
            again[stage] = f"{states_missing} states of that run are pruned or gone: extract makes them again"
        elif stage not in finished and number < start:
            again[stage] = f"{stage} has not finished in that run: it goes on from what is there"
        elif read:
            again[stage] = f"{stage} reads what {listed(read)} {'leaves' if len(read) == 1 else 'leave'}: {stage} runs again"
        elif number >= start:
            again[stage] = f"{stage} runs again, as asked for"
        elif own:
            again[stage] = f"{stage} runs again: the model card tells the changed fields"
    if from_checkpoint is not None:
        why = again["train"].removesuffix(", as asked for")
        again["train"] = f"{why} from checkpoint step-{from_checkpoint}"
    elif "train" in again and "changes train" in again["train"] and checkpoints:
        steps = " or ".join(str(step) for step in sorted(checkpoints))
        again["train"] += f" from its start; --from-checkpoint {steps} would go on from there"
    kept = tuple(stage for stage in STAGES if stage not in again)
    partial: list[str] = [stage for stage in ("regenerate", "extract") if stage in again and STAGES.index(stage) < start]
    goes_on = start == len(STAGES) and "goes on from what is there" in again.get("train", "")
    if from_checkpoint is not None or goes_on:
        partial.append("train")
    return ForkPlan(kept, tuple(partial), again, changed, from_checkpoint)


def forked(
    parent: RunSpec,
    run_id: str,
    changes: Mapping[str, Any],
    *,
    workspace: str,
    finished: Collection[str],
    checkpoints: Collection[int],
    from_stage: str | None = None,
    from_checkpoint: int | None = None,
    states_missing: int = 0,
) -> tuple[RunSpec, ForkPlan]:
    """The spec of a fork of ``run_id`` with the fields ``changes``, and its plan. ``workspace`` is where the new run stands,
    whatever the parent was told to call it. Raises SpecError, ForkError."""
    origin = f"{run_id}@step-{from_checkpoint}" if from_checkpoint is not None else f"{run_id}@{from_stage or 'all'}"
    child = override(parent, {"workspace": workspace, **changes, "forked_from": origin})
    found = plan(
        parent.model_copy(update={"workspace": child.workspace}), child, finished=finished, checkpoints=checkpoints,
        from_stage=from_stage, from_checkpoint=from_checkpoint, states_missing=states_missing,
    )  # fmt: skip
    return child, found


def origin_of(text: str) -> tuple[str | None, int | None]:
    """The stage or the checkpoint that a word names: "extract", "train@150", "" for all that still holds. Raises ForkError."""
    stage, sign, step = text.strip().partition("@")
    if sign and (stage != "train" or not step.isdecimal()):
        raise ForkError(f"'{text}' is no place to fork from; write a stage, or train@150 for the checkpoint of step 150.")
    if stage and stage not in STAGES:
        raise ForkError(f"There is no stage '{stage}'; it is one of {', '.join(STAGES)}, or train@STEP for a checkpoint.")
    return (None, int(step)) if sign else (stage or None, None)


def _check_checkpoint(child: RunSpec, changed: Collection[str], checkpoints: Collection[int], step: int) -> None:
    if step not in checkpoints:
        there = ", ".join(str(one) for one in sorted(checkpoints)) or "none"
        raise ForkError(f"There is no complete checkpoint of step {step}; there is: {there}.")
    for field in changed:
        if _among(field, IN_A_CHECKPOINT):
            raise ForkError(
                f"{field} changes what a checkpoint holds, so none can be gone on from; fork --from-stage train, or leave it."
            )
        for stage in ("prepare", "regenerate", "extract", "vocabulary"):
            if depends(stage, field) and field not in BASELINE:
                raise ForkError(
                    f"{field} changes {stage}, and a checkpoint holds only for the samples and the vocabulary that it was "
                    f"trained on; fork --from-stage {stage}, or leave the field."
                )
    if child.train.max_steps <= step:
        raise ForkError(f"train.max_steps is {child.train.max_steps}, the checkpoint is of step {step}; raise train.max_steps.")


def _check_kept(stage: str, own: Collection[str], finished: Collection[str], start: str) -> None:
    """A stage before the one that a fork starts at must be there and must stay as it is."""
    if own:
        raise ForkError(
            f"{listed(own)} {'changes' if len(own) == 1 else 'change'} {stage}, which comes before {start}: "
            f"fork --from-stage {stage}, or leave {'the field' if len(own) == 1 else 'these fields'}."
        )
    if stage not in finished:
        raise ForkError(
            f"{stage} has not finished in that run, and {start} needs it: fork --from-stage {stage}, or resume the run."
        )


def _among(field: str, names: Collection[str]) -> bool:
    return any(field == name or (name.endswith(".") and field.startswith(name)) or not name for name in names)
