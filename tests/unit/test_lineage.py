"""What a fork takes over is said beforehand, and it is what the stages themselves will find."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from eagle3.core import presets
from eagle3.core.lineage import BASELINE, ForkError, ForkPlan, depends, plan
from eagle3.core.presets import flat, override, resolve
from eagle3.core.spec import STAGES, RunSpec, hash_of
from eagle3.stages import evaluate, export, extract, prepare, regenerate, train, vocabulary

PARENT = resolve("pilot", "smollm2-135m", "cpu")
MODULES: dict[str, ModuleType] = {
    "prepare": prepare, "regenerate": regenerate, "extract": extract, "vocabulary": vocabulary,
    "train": train, "evaluate": evaluate, "export": export,
}  # fmt: skip
WHOLE = STAGES
CHECKPOINTS = (100, 150)


def changed(**values: Any) -> RunSpec:
    return override(PARENT, {name.replace("__", "."): value for name, value in values.items()})


def planned(child: RunSpec, **how: Any) -> ForkPlan:
    return plan(PARENT, child, **{"finished": WHOLE, "checkpoints": CHECKPOINTS, **how})


def refusal(child: RunSpec, **how: Any) -> str:
    with pytest.raises(ForkError) as caught:
        planned(child, **how)
    assert str(caught.value).endswith(".")
    return str(caught.value)


NUMBERS = ("evaluate.concurrencies", "evaluate.temperatures")


def another(value: Any, name: str = "") -> Any:
    if name in NUMBERS:
        return [*value, 3]
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 2  # one rank more than none is still one
    if isinstance(value, list):
        return [*value, "x", "y"]
    if isinstance(value, dict):
        return {**value, "X": "1"}
    return f"{value or ''}x"


def each_field_changed() -> Iterator[tuple[str, RunSpec]]:
    """The parent with one field changed, for every field; what would be refused as a spec counts too."""
    for name, value in flat(PARENT).items():
        *parents, last = name.split(".")
        part = PARENT
        chain: list[Any] = [part]
        for parent in parents:
            chain.append(getattr(chain[-1], parent))
        new: Any = chain[-1].model_copy(update={last: another(value, name)})
        for holder, parent in zip(reversed(chain[:-1]), reversed(parents), strict=True):
            new = holder.model_copy(update={parent: new})
        yield name, new


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("stage", STAGES)
def test_the_table_of_fields_is_what_the_stage_itself_depends_on(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = MODULES[stage]
    if hasattr(module, "fingerprint"):
        # Whatever lies in a model's folder, another path may hold another model.
        monkeypatch.setattr(module, "fingerprint", str)
    if stage == "prepare":
        monkeypatch.setattr(prepare, "content_hash", str)
        monkeypatch.setattr(prepare, "user_file", str)
    before = hash_of(module.spec_part(PARENT))
    wrong = [name for name, child in each_field_changed() if (hash_of(module.spec_part(child)) != before) != depends(stage, name)]
    # A model given by another name is another one for the stages that look into its folder; the presets' name is its own field.
    assert wrong == []


def test_a_fork_with_nothing_changed_takes_everything_over() -> None:
    found = planned(PARENT)
    assert found.takes == STAGES
    assert found.again == {}
    assert found.lines("r")[0].startswith("prepare, regenerate, extract, vocabulary, train, evaluate and export are taken over")


def test_a_wrong_learning_rate_goes_on_from_a_checkpoint() -> None:
    found = planned(changed(train__learning_rate=5e-4), from_checkpoint=150)
    assert found.takes == ("prepare", "regenerate", "extract", "vocabulary")
    assert found.again["train"] == "train.learning_rate changes train: train runs again from checkpoint step-150"
    assert found.again["evaluate"] == "evaluate reads what train leaves: evaluate runs again"
    assert (found.partial, found.checkpoint, found.changed) == (("train",), 150, ("train.learning_rate",))


def test_without_a_checkpoint_the_training_starts_over_and_the_ones_there_are_named() -> None:
    found = planned(changed(train__learning_rate=5e-4))
    assert "from its start; --from-checkpoint 100 or 150 would go on from there" in found.again["train"]
    assert found.partial == ()


def test_more_steps_go_on_from_a_checkpoint_too() -> None:
    assert planned(changed(train__max_steps=900), from_checkpoint=100).checkpoint == 100


def test_other_evaluation_settings_cost_no_training() -> None:
    found = planned(changed(evaluate__prompts=10))
    assert found.takes == ("prepare", "extract", "vocabulary", "train")
    assert found.partial == ("regenerate",), "answers are not asked for again"


def test_other_layers_leave_the_answers() -> None:
    found = planned(changed(target__auxiliary_layers=[2, 14, 27]))
    assert found.takes == ("prepare", "regenerate", "vocabulary")
    assert set(found.again) == {"extract", "train", "evaluate", "export"}


def test_a_stage_asked_for_starts_from_nothing_with_all_after_it() -> None:
    found = planned(PARENT, from_stage="extract")
    assert found.takes == ("prepare", "regenerate")
    assert found.again["extract"] == "extract runs again, as asked for"
    assert found.partial == ()


def test_an_unfinished_run_is_forked_where_it_stands() -> None:
    found = planned(changed(evaluate__prompts=10), finished=("prepare", "regenerate"), checkpoints=())
    assert found.takes == ("prepare",)
    assert found.partial[:2] == ("regenerate", "extract")
    assert "goes on from what is there" in found.again["extract"]


def test_an_unfinished_training_goes_on_from_its_newest_checkpoint() -> None:
    found = planned(changed(train__keep_last=5), finished=("prepare", "regenerate", "extract", "vocabulary"))
    assert "train" in found.partial and found.checkpoint is None


@pytest.mark.parametrize(
    ("child", "how", "said"),
    [
        (PARENT, {"from_stage": "trian"}, "There is no stage 'trian'"),
        (PARENT, {"from_checkpoint": 120}, "There is no complete checkpoint of step 120; there is: 100, 150."),
        (PARENT, {"from_checkpoint": 120, "checkpoints": ()}, "there is: none"),
        (PARENT, {"from_checkpoint": 100, "from_stage": "extract"}, "belongs to the stage train, not to extract"),
        (changed(vocabulary__size=4096), {"from_checkpoint": 100}, "vocabulary.size changes vocabulary, and a checkpoint holds"),
        (changed(data__train_prompts=32), {"from_checkpoint": 100}, "data.train_prompts changes prepare"),
        (changed(train__optimizer="muon"), {"from_checkpoint": 100}, "train.optimizer changes what a checkpoint holds"),
        (changed(target__auxiliary_layers=[2, 14, 27]), {"from_checkpoint": 100}, "changes what a checkpoint holds"),
        (changed(target__draft__head_dim=32), {"from_checkpoint": 100}, "target.draft.head_dim changes what a checkpoint holds"),
        (changed(train__max_steps=100), {"from_checkpoint": 100}, "the checkpoint is of step 100; raise train.max_steps"),
        (changed(regenerate__max_new_tokens=9), {"from_stage": "train"}, "changes regenerate, which comes before train"),
        (PARENT, {"from_stage": "train", "finished": ("prepare", "regenerate")}, "extract has not finished in that run"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_with_the_field_and_the_way_out(
    child: RunSpec, how: dict[str, Any], said: str
) -> None:
    assert said in refusal(child, **how)


def test_the_baselines_fields_are_those_that_measure_again_only() -> None:
    asked = regenerate._answers_part(PARENT)
    for name in BASELINE:
        assert regenerate._answers_part(override(PARENT, {name: smaller(name)})) == asked


def smaller(name: str) -> Any:
    value = presets.flat(PARENT)[name]
    return [1] if isinstance(value, list) else value - 1


def test_pruned_states_are_made_again_only_where_a_training_will_read_them() -> None:
    served = planned(changed(evaluate__max_new_tokens=7), states_missing=5)
    assert {"extract", "train"} <= set(served.takes)
    trained = planned(changed(train__learning_rate=7e-4), states_missing=5)
    assert trained.again["extract"] == "5 states of that run are pruned or gone: extract makes them again"
    assert "extract" in trained.partial and "extract" not in trained.takes
    assert "5 states of that run are pruned or gone, and train needs them" in refusal(
        changed(), from_stage="train", states_missing=5
    )
