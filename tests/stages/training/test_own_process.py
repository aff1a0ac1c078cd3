"""Which processes a training has, and what they must not do at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle3.core.presets import resolve
from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.training import draft, launching, session
from eagle3.training.group import Group


# The worker would hold the card's memory until the end of the run.
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


def test_the_targets_own_code_is_brought_by_one_rank_before_any_other_looks_for_it(
    toy_run: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Watched(Group):
        def agree(self, ask: Callable[[], Any]) -> Any:
            done.append("agree")
            return super().agree(ask)

    build, bring_code = draft.build, draft.bring_code
    monkeypatch.setattr(draft, "build", lambda *args: (done.append("build"), build(*args))[1])
    monkeypatch.setattr(draft, "bring_code", lambda folder: (done.append("code"), bring_code(folder))[1])
    ctx = toy_run()
    session.Session(ctx, Watched())
    assert done == ["build"], "a target without code of its own costs no word among the ranks"
    done.clear()
    ctx.spec = ctx.spec.model_copy(update={"target": ctx.spec.target.model_copy(update={"trust_remote_code": True})})
    session.Session(ctx, Watched())
    assert done == ["agree", "code", "build"]
