"""The experimental kinds train a few real steps on the tiny target, are saved and gone on from, and say what they are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from safetensors.torch import load_file

from eagle3 import draft_folder
from eagle3.stages import evaluate, train
from eagle3.stages.context import StageContext, Stopped

pytestmark = pytest.mark.long

Rows = Callable[[StageContext, str], list[dict]]


@pytest.mark.usefixtures("with_tokenizer")
@pytest.mark.parametrize("kind", ["peagle", "dflash", "dspark"])
def test_an_experimental_kind_trains_and_its_resume_repeats_the_unbroken_training(
    toy_run: Callable[..., StageContext], rows_of: Rows, kind: str
) -> None:
    how = {"kind": kind, "max_steps": 6, "learning_rate": 5e-3}
    unbroken = toy_run(run="unbroken", **how)
    figures = train.run(unbroken)
    (told,) = [row for row in rows_of(unbroken, "events.jsonl") if row["kind"] == "experimental"]
    assert told["level"] == "warn" and kind in told["text"]
    rows = [row for row in rows_of(unbroken, "metrics.jsonl") if row["split"] == "train"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["loss"] < rows[0]["loss"] and all(row["accept_len"] == 1 + row["acc_pos"][0] for row in rows)
    assert figures["val"]["tokens"] > 0 and figures["val"]["loss"] < figures["untrained"]["loss"]
    config = json.loads((unbroken.run_dir / "train" / "draft" / "config.json").read_text())
    assert config["speculators_model_type"] == kind
    assert draft_folder.check(unbroken.run_dir / "train" / "draft").draft_vocab_size == 48
    assert kind in evaluate.speculative_args(unbroken)[1] or kind == "peagle"
    with pytest.raises(Stopped):
        train.run(toy_run(run="broken", stop_after=3, **how))
    broken = toy_run(run="broken", **how)
    assert train.run(broken)["resumed_from"] == 3
    again = {row["step"]: row["loss"] for row in rows_of(broken, "metrics.jsonl") if row["split"] == "train"}
    assert again == {row["step"]: row["loss"] for row in rows}
    ours, theirs = (load_file(ctx.run_dir / "train" / "draft" / "model.safetensors") for ctx in (broken, unbroken))
    assert ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in theirs)
