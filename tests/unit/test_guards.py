"""Each guard is caused, told once with what it rests on, and armed again when the trouble is over."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.guards import StepSeen, TrainingGuards, blind_samples, low_coverage, repeated_answers
from eagle3.core.presets import resolve
from eagle3.core.spec.guards import Guards


def seen(step: int, **more: Any) -> StepSeen:
    usual: dict[str, Any] = {
        "loss": 10.0 / (step + 1), "grad_norm": 1.0, "first_acc": 0.3, "tokens": 100,
    }  # fmt: skip
    return StepSeen(step=step, **(usual | more))


def tripped(settings: Guards, steps: list[StepSeen]) -> list[tuple[int, str]]:
    guards = TrainingGuards(settings)
    return [(step.step, finding.kind) for step in steps for finding in guards.take(step)]


SHORT = Guards(
    flat_loss_steps=20, gradient_steps=10, first_position_tokens=1000, first_position_steps=1, memory_after_steps=5
)  # fmt: skip


def test_a_healthy_training_trips_nothing() -> None:
    assert tripped(SHORT, [seen(n) for n in range(300)][:60]) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_trips_at_its_step(loss: float) -> None:
    assert tripped(SHORT, [seen(n, **({"loss": loss} if n == 7 else {})) for n in range(10)]) == [(7, "nan")]
    assert tripped(SHORT, [seen(3, grad_norm=math.nan)]) == [(3, "nan")]


def test_an_exploding_gradient_is_judged_against_the_usual_one_and_told_once() -> None:
    steps = [seen(n, grad_norm=500.0 if n in (15, 16) else 1.0 + n % 3) for n in range(20)]
    assert tripped(SHORT, steps) == [(15, "gradient")]
    assert tripped(SHORT, [seen(n, grad_norm=500.0 if n == 5 else 1.0) for n in range(9)]) == [], "not armed yet"
    again = [seen(n, grad_norm=500.0 if n in (15, 18) else 1.0) for n in range(20)]
    assert tripped(SHORT, again) == [(15, "gradient"), (18, "gradient")]


def test_a_loss_that_falls_no_more_is_told_once_after_enough_steps() -> None:
    assert tripped(SHORT, [seen(n, loss=5.0 + 0.001 * (n % 2)) for n in range(40)]) == [(19, "flat-loss")]
    assert tripped(SHORT, [seen(n, loss=5.0 - 0.05 * n) for n in range(40)]) == []


def test_a_first_position_that_stays_wrong_is_told_once_enough_tokens_were_seen() -> None:
    found = TrainingGuards(SHORT)
    findings = [finding for n in range(20) for finding in found.take(seen(n, first_acc=0.001))]
    assert [finding.kind for finding in findings] == ["first-position"]
    assert findings[0].counts["tokens"] == 1000 and "auxiliary_layers" in findings[0].text


@pytest.mark.parametrize("size", ["pilot", "full"])
@pytest.mark.parametrize("machine", ["8x-rtx-pro-6000", "8x-b300"])
def test_the_first_steps_of_eight_gpus_are_no_verdict_however_many_tokens_they_hold(size: str, machine: str) -> None:
    spec = resolve(size, "kimi-k2.5", machine)
    step_tokens, warm = spec.train.pack_tokens * spec.packs_per_step, spec.train.warmup_steps
    assert 4 * step_tokens > spec.guards.first_position_tokens, "what was judged once, with a learning rate of nearly nothing"
    learns = [seen(n, first_acc=0.001 if n < warm else 0.2, tokens=step_tokens) for n in range(1, spec.train.max_steps)]
    assert "first-position" not in [kind for _, kind in tripped(spec.guards, learns)]
    wrong = [seen(n, first_acc=0.001, tokens=step_tokens) for n in range(1, spec.train.max_steps)]
    assert (200, "first-position") in tripped(spec.guards, wrong)


def test_memory_that_creeps_up_is_told() -> None:
    steps = [seen(n, cards=(((40 + n) << 30, 100 << 30),)) for n in range(20)]
    assert tripped(SHORT, steps) == [(15, "memory")]


def test_memory_that_creeps_up_on_one_card_of_several_is_told_with_the_cards_name() -> None:
    guards = TrainingGuards(SHORT, cards=["4", "5"])
    steps = [seen(n, cards=((90 << 30, 100 << 30), ((40 + n) << 30, 100 << 30))) for n in range(20)]
    (finding,) = (finding for step in steps for finding in guards.take(step))
    assert finding.text.startswith("The memory of GPU 5 grew by 11% of the card since step 4, to 55.0 of 100.0 GiB.")


@pytest.mark.parametrize(("steps", "judged"), [(40, 100), (200, 100), (240, 120), (50_000, 1000)])
def test_where_the_spec_leaves_it_open_a_flat_loss_is_judged_by_half_of_the_training(steps: int, judged: int) -> None:
    guards = TrainingGuards(Guards(), steps)
    told = [(n, finding.kind) for n in range(1, judged + 2) for finding in guards.take(seen(n, loss=5.0))]
    assert told == [(judged, "flat-loss")]


def test_a_resumed_training_goes_on_watching_where_the_attempt_before_it_ended() -> None:
    before, after, whole = TrainingGuards(SHORT), TrainingGuards(SHORT), TrainingGuards(SHORT)
    steps = [seen(n, loss=5.0, first_acc=0.001) for n in range(40)]
    expected = [(step.step, finding) for step in steps for finding in whole.take(step)]
    told = [(step.step, finding) for step in steps[:15] for finding in before.take(step)]
    after.go_on(before.state())
    told += [(step.step, finding) for step in steps[15:] for finding in after.take(step)]
    assert told == expected and [finding.kind for _, finding in told] == ["first-position", "flat-loss"]


def test_what_a_resumed_training_takes_in_its_first_steps_is_no_creeping() -> None:
    used = [10, 40, 60, 70, 70, *[71] * 10]
    steps = [seen(5000 + n, cards=((size << 30, 100 << 30),)) for n, size in enumerate(used)]
    assert tripped(SHORT, steps) == []


def test_what_is_switched_off_says_nothing() -> None:
    off = SHORT.model_copy(update={"flat_loss": "off", "gradient": "off", "first_position": "off"})
    assert tripped(off, [seen(n, loss=5.0, first_acc=0.0, grad_norm=1.0 if n < 15 else 1e6) for n in range(40)]) == []


def test_answers_of_repeated_tokens_are_counted() -> None:
    found = repeated_answers([0.9] * 3 + [0.02] * 9, Guards())
    assert [(f.kind, f.response, f.counts) for f in found] == [("repeated-tokens", "stop", {"answers": 12.0, "repeated": 3.0})]
    assert repeated_answers([0.9, 0.02] * 3, Guards()) == [], "too few to judge"
    assert repeated_answers([0.02] * 100, Guards()) == []


def test_samples_that_the_loss_cannot_see_are_counted() -> None:
    assert blind_samples([0, 0, 5, 7] * 3, Guards())[0].value == 0.5
    assert blind_samples([0, 0, 5, 7], Guards()) == [], "too few to judge"
    assert blind_samples([5] * 9 + [0], Guards()) == [] and blind_samples([], Guards()) == []


def test_a_vocabulary_that_lacks_too_much_is_told_with_its_coverage() -> None:
    found = low_coverage(0.88, 2000, Guards(), 8192)
    assert "8,192 tokens holds 88.0%" in found[0].text
    assert low_coverage(0.96, 2000, Guards(), 8192) == [] and low_coverage(0.1, 10, Guards(), 8192) == []


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(0, 1)), max_size=60))
def test_no_numbers_make_a_guard_fail(rows: list[tuple[float, float, float]]) -> None:
    guards = TrainingGuards(SHORT)
    for n, (loss, norm, first) in enumerate(rows):
        for finding in guards.take(seen(n, loss=loss, grad_norm=norm, first_acc=first)):
            assert finding.text
