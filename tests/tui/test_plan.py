"""The choices of the Launch screen, resolved and said in numbers."""

from __future__ import annotations

import pytest

from eagle3.core import presets
from eagle3.core.presets import SpecError
from eagle3.core.records import Disk, Probe
from eagle3.core.spec import STAGES
from tests.tui.support.container import GIB, eight_gpus
from tests.tui.support.folders import NOW
from tui import plan
from tui.plan import Choices, first_choices, for_machine, new_run_id, resolve


def choices(**values: str) -> Choices:
    return Choices(**{"target": "smollm2-135m", "machine": "cpu", **values})


def test_empty_fields_leave_the_presets_numbers() -> None:
    assert resolve(choices()) == presets.resolve("pilot", "smollm2-135m", "cpu")


def test_typed_fields_override_the_preset() -> None:
    spec = resolve(
        choices(train_prompts="5,000", max_steps=" 20 ", prompts="~/p.jsonl", workspace="/data/e", more="train.seed=3")
    )
    assert (spec.data.train_prompts, spec.train.max_steps, spec.train.seed) == (5000, 20, 3)
    assert (spec.data.prompts, spec.workspace) == ("~/p.jsonl", "/data/e")


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("train_prompts", "many", "Train prompts: 'many' is not a whole number from 1 up."),
        ("max_steps", "0", "Max steps: '0' is not a whole number from 1 up."),
        ("prompts", "p.jsonl", "Prompts file: 'p.jsonl' is a path in the container, so it must begin with / or ~/."),
        ("workspace", "here", "Workspace: 'here' is a path in the container, so it must begin with / or ~/."),
        ("more", "train.max_step=3", "train.max_step: there is no such field (got 3)."),
        ("more", "fast", "'fast' is not an override; write field=value, such as train.max_steps=200."),
        ("machine", "b30", "There is no machine called 'b30'; did you mean '8x-b300'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(field: str, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(choices(**{field: text}))
    assert str(caught.value).startswith(words)


def test_numbers_typed_for_one_size_do_not_carry_over_to_another() -> None:
    assert choices(size="smoke", max_steps="3", workspace="/w").with_size("pilot") == choices(size="pilot", workspace="/w")
    same = choices(size="pilot", max_steps="3")
    assert same.with_size("pilot") is same


def test_the_machine_follows_what_the_probe_saw_as_far_as_presets_go() -> None:
    assert for_machine(first_choices(), None).machine == "cpu"
    assert for_machine(first_choices(), Probe(gpu=eight_gpus())).machine in plan.presets.names("machine")


def test_gpus_choose_the_machine_that_has_them() -> None:
    for name, machine in (("NVIDIA B300 SXM6 AC", "8x-b300"), ("NVIDIA RTX PRO 6000 Blackwell", "8x-rtx-pro-6000")):
        seen = eight_gpus()
        gpus = [gpu.model_copy(update={"name": name}) for gpu in seen.gpus]
        assert for_machine(first_choices(), Probe(gpu=seen.model_copy(update={"gpus": gpus}))).machine == machine


def test_the_expected_time_says_how_sure_it_is() -> None:
    assert plan.time_line(resolve(choices())).endswith("rates measured)")
    assert plan.time_line(resolve(choices(machine="8x-b300"))).endswith("rates derived)")


def test_a_run_that_cannot_work_is_not_launched() -> None:
    on_gpus = choices(machine="8x-b300", prompts="/data/p.jsonl")
    assert plan.launchable(on_gpus) == resolve(on_gpus)
    with pytest.raises(SpecError, match=r"set data\.prompts to a JSONL file"):
        plan.launchable(choices(machine="8x-b300"))
    assert plan.resolves(choices(machine="8x-b300")) and not plan.resolves(choices(more="x=1"))


def test_the_plan_names_every_stage_in_order() -> None:
    assert [name for name, _ in plan.steps(resolve(choices()))] == list(STAGES)


def test_the_disk_line_says_when_it_is_not_enough() -> None:
    spec = resolve(choices())
    assert "unknown" in plan.disk_line(None, spec)
    low = Probe(disks=[Disk(path="~/eagle3", mount="/", total_bytes=9 * GIB, free_bytes=GIB // 2)])
    assert "not enough" in plan.disk_line(low, spec)
    assert "needs 742 MiB" in plan.disk_line(low, spec)


def test_a_run_id_is_made_of_size_time_and_chance() -> None:
    run_id = new_run_id("pilot", NOW, pick=lambda letters: letters[0])
    assert run_id.startswith("pilot-20") and run_id.endswith("-aaaa")
    assert len({new_run_id("pilot", NOW) for _ in range(50)}) == 50
