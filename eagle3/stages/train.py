"""Trains the draft on the hidden states, and leaves it in the form that vLLM serves.

Leaves ``train/draft/``, ``train/untrained/`` (the same model at step 0) and ``train/floor.json`` (what the untrained one
reaches held-out); ``train/checkpoints/`` is what a resume goes on from. Training rows carry speculators' own figures of
the pack; rows with split "val" carry those of ``eagle3.training.heldout``. Both are simulated.
"""

from __future__ import annotations

import time
from typing import Any

from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import fingerprint
from eagle3.stages.context import StageContext
from eagle3.targets import model_dir
from eagle3.training import launching

OUTPUTS = ("train/draft", "train/untrained", "train/floor.json")

IMPORT_QUIET_S = 180.0


NOT_THE_DRAFT = {
    "checkpoint_every_steps", "checkpoint_every_minutes", "validate_every_steps", "keep_last", "keep_best", "tensorboard",
    "ranks", "packs_per_step", "parallel",
}  # fmt: skip
"""Fields that the draft does not depend on: how often it is saved and scored, and how its packs are shared out among ranks."""


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What of the spec the draft depends on. Later fields count from the value on that says something else than before them."""
    how = spec.train.model_dump(exclude=NOT_THE_DRAFT | {"kind", "export_best"})
    if spec.train.kind != "eagle3":
        how["kind"] = spec.train.kind
    if spec.packs_per_step != 1:
        how["packs_per_step"] = spec.packs_per_step
    if spec.train.export_best:
        # Which step can be the best depends on when it is looked for.
        how |= {"export_best": True, "validate_every_steps": spec.train.validate_every_steps}
    # Embeddings and head come from the target's folder.
    model = fingerprint(model_dir(spec.target.model))
    part = {"train": how, "auxiliary_layers": spec.target.auxiliary_layers, "target": spec.target.name, "model": model}
    shape = {name: value for name, value in spec.target.draft.model_dump().items() if value}
    return part | ({"draft": shape} if shape else {})


def run(ctx: StageContext) -> dict[str, Any]:
    """Train to ``train.max_steps``, from the newest whole checkpoint if there is one.

    Several ranks (`RunSpec.train_ranks`) are started here and this process waits for them; so is one on a GPU, for what it holds
    there must be free again when the stage evaluate starts its server.

    Figures: ``steps``, ``loss`` (mean of the last ten), ``val`` (of the draft that is exported) and ``untrained`` (``acc_pos``,
    ``accept_len``, ``tokens``, ``samples``), ``tok_s`` (of this attempt), ``resumed_from`` (a step, or null), ``best`` (``step``
    and its figures, where train.keep_best asks for it), ``exported_step``. Raises Stopped after a checkpoint where a stop was
    asked for, StageError where the loss is not finite, the states cannot be read or a rank died.
    """
    began = time.monotonic()
    ctx.journal.progress(
        "train", 0, ctx.spec.train.max_steps, "steps", quiet_s=IMPORT_QUIET_S, reason="loading torch and speculators"
    )
    if ctx.spec.train_ranks > 1 or ctx.spec.device == "cuda":
        return launching.train(ctx, ctx.spec.train_ranks)
    from eagle3.training.session import Session

    ctx.check_stop()  # a stop may have come while the packages loaded
    session = Session(ctx)
    ctx.journal.log(f"Ready to train after {time.monotonic() - began:.0f} s.")
    return session.run()
