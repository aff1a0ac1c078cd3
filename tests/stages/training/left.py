"""What a training has left in its run, as the tests read it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file

from eagle3.stages.context import StageContext

Rows = Callable[[StageContext, str], list[dict]]


def losses(rows: list[dict]) -> dict[int, float]:
    """Loss by step, the last row of each step winning."""
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


def checkpoints(ctx: StageContext) -> set[str]:
    return {path.name for path in (ctx.run_dir / "train" / "checkpoints").iterdir()}


def weights(ctx: StageContext) -> dict[str, torch.Tensor]:
    return load_file(ctx.run_dir / "train" / "draft" / "model.safetensors")
