"""The draft's vocabulary: the target's most frequent answer tokens, both maps right, and what they cover."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eagle3.stages import vocabulary
from eagle3.stages.context import StageContext, StageError
from tests.support.guards import the_guard

TRAIN = [("train", [1, 2], [40, 40, 40, 50, 50, 60]), ("train", [3], [40, 50, 33])]


@pytest.fixture
def run(
    make_context: Callable[..., StageContext], write_samples: Callable[..., None], toy_target: Path
) -> Callable[..., StageContext]:
    def prepare(heldout: list[int], size: int = 16) -> StageContext:
        ctx = make_context(vocabulary_size=size)
        write_samples(ctx.run_dir, [*TRAIN, ("heldout", [9], heldout)])
        return ctx

    return prepare


def test_the_answers_tokens_are_in_the_draft_vocabulary_and_prompts_do_not_count(run: Callable[..., StageContext]) -> None:
    ctx = run(heldout=[40, 50, 60, 33])
    figures = vocabulary.run(ctx)
    d2t, t2d = (np.load(ctx.run_dir / "vocabulary" / f"{name}.npy") for name in ("d2t", "t2d"))
    in_target = np.arange(16) + d2t
    assert {33, 40, 50, 60} <= set(in_target.tolist())
    assert t2d.sum() == 16 and t2d[in_target].all()
    assert figures == {"size": 16, "coverage": 1.0, "coverage_train": 1.0}


def test_coverage_counts_the_heldout_tokens_that_the_draft_can_never_propose_and_warns(
    run: Callable[..., StageContext], rows_of: Callable[..., list[dict]]
) -> None:
    ctx = run(heldout=[40, 40, 63, 62] * 50)
    assert vocabulary.run(ctx)["coverage"] == 0.5
    saved = json.loads((ctx.run_dir / "vocabulary" / "coverage.json").read_text())
    assert saved["heldout"] == {"tokens": 200, "covered": 100, "share": 0.5, "missed_most": {"63": 50, "62": 50}}
    assert saved["train"]["share"] == 1.0
    warning = the_guard(rows_of(ctx, "events.jsonl"), "coverage")
    assert warning["guard"]["value"] == 0.5 and "50.0%" in warning["text"]


def test_old_counts_are_not_taken_for_new_ones(run: Callable[..., StageContext]) -> None:
    import torch

    ctx = run(heldout=[40])
    torch.save({5: 1}, ctx.path("vocabulary", "token_freq.pt"))
    vocabulary.run(ctx)
    assert torch.load(ctx.run_dir / "vocabulary" / "token_freq.pt", weights_only=True)[40] == 4


def test_the_draft_vocabulary_is_never_larger_than_the_targets(run: Callable[..., StageContext]) -> None:
    ctx = run(heldout=[40], size=8192)
    assert vocabulary.run(ctx)["size"] == 64


def test_tokens_of_another_tokenizer_are_refused(
    make_context: Callable[..., StageContext], write_samples: Callable[..., None], toy_target: Path
) -> None:
    ctx = make_context(vocabulary_size=16)
    write_samples(ctx.run_dir, [("train", [1], [64]), ("heldout", [1], [2])])
    with pytest.raises(StageError, match="another tokenizer"):
        vocabulary.run(ctx)


def test_a_split_without_answers_is_refused(
    make_context: Callable[..., StageContext], write_samples: Callable[..., None], toy_target: Path
) -> None:
    ctx = make_context()
    write_samples(ctx.run_dir, [("train", [1], [2])])
    with pytest.raises(StageError, match="heldout"):
        vocabulary.run(ctx)


@pytest.mark.parametrize(
    ("d2t", "members", "says"),
    [
        ([0, 0, 0], [0, 1, 2], "entries"),
        ([0, 0, 0, -1], [0, 1, 2], "twice"),
        ([0, 0, 0, 60], [0, 1, 2, 3], "does not have"),
        ([0, 0, 0, 0], [0, 1, 2, 9], "disagree"),
    ],
    ids=["short", "doubled", "out of range", "maps that differ"],
)
def test_wrong_maps_are_refused(d2t: list[int], members: list[int], says: str) -> None:
    t2d = np.zeros(16, dtype=bool)
    t2d[members] = True
    with pytest.raises(StageError, match=says):
        vocabulary.check(np.array(d2t), t2d, size=4, target_size=16)
