"""A training on a GPU never runs within the worker, which would hold the card's memory until the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eagle3.core.presets import resolve
from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.training import launching, session
from eagle3.training.group import Group


def test_a_training_on_one_gpu_has_a_process_of_its_own_that_sees_that_gpu_alone(
    make_context: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = make_context()
    ctx.spec = resolve("pilot", "llama-3.1-8b", "8x-b300", {"devices.train": [3]})
    asked: list[int] = []

    def started(_: StageContext, ranks: int) -> dict[str, object]:
        asked.append(ranks)
        return {"steps": 1}

    monkeypatch.setattr(launching, "train", started)
    assert train.run(ctx) == {"steps": 1}
    assert asked == [1]
    assert launching._environment(ctx, 1)["CUDA_VISIBLE_DEVICES"] == "3"
    assert session._device(ctx.spec, Group()) == torch.device("cuda", 0), "the only one that it sees"
