"""What a run takes is said before it starts, in figures that a person can check by hand, each with where it comes from."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from eagle3.core import presets
from eagle3.core.estimate import Need, compare, estimate, lines, refusal
from eagle3.core.rates import rates, score_flops, train_flops
from eagle3.core.shape import draft_size
from eagle3.core.spec import STAGES, RunSpec
from eagle3.core.wording import bytes_label

GIB, TB = 1 << 30, 1e12


def spec_of(size: str, target: str, machine: str, **overrides: Any) -> RunSpec:
    return presets.resolve(size, target, machine, {name.replace("__", "."): value for name, value in overrides.items()})


PILOT = spec_of("pilot", "smollm2-135m", "cpu")
KIMI = spec_of("full", "kimi-k2.5", "8x-rtx-pro-6000", data__prompts="/data/prompts.jsonl")


@pytest.mark.parametrize("machine", ["8x-b300", "8x-rtx-pro-6000"])
def test_the_pilot_on_gpus_measures_a_curve_beside_n_grams_in_half_an_hour_of_kimi(machine: str) -> None:
    spec = spec_of("pilot", "kimi-k2.5", machine)
    assert (spec.evaluate.levels, spec.evaluate.temperatures, spec.evaluate.ngram) == ([1, 4, 16], [0, 0.7], True)
    one_point = spec_of(
        "pilot", "kimi-k2.5", machine,
        evaluate__concurrencies=[], evaluate__temperatures=[0], evaluate__ngram=False,
    )  # fmt: skip
    more_s, seconds = (estimate(one).of("evaluate").seconds for one in (spec, one_point))
    start_s = rates(spec)["server_start_s"].value
    assert seconds + start_s < more_s < 30 * 60, "its time is in the estimate, a start of the server more among it"
    assert estimate(spec).seconds - estimate(one_point).seconds < 25 * 60


@pytest.mark.parametrize(
    ("target", "bytes_a_token"), [("kimi-k2.5", 57_344), ("llama-3.1-8b", 32_768), ("qwen3-8b", 32_768), ("smollm2-135m", 9_216)]
)
def test_a_token_takes_captured_layers_times_hidden_times_bytes(target: str, bytes_a_token: int) -> None:
    assert estimate(spec_of("pilot", target, "8x-b300")).state_bytes_a_token == bytes_a_token


def test_a_long_sample_of_kimi_takes_470_megabytes_and_100k_samples_11_7_terabytes() -> None:
    assert 8192 * estimate(KIMI).state_bytes_a_token == pytest.approx(470e6, rel=0.01)
    found = estimate(KIMI.model_copy(update={"data": KIMI.data.model_copy(update={"heldout_prompts": 4})}))
    assert found.sample_tokens == 2048
    assert found.of("extract").bytes == pytest.approx(11.7 * TB, rel=0.01)


def test_the_extraction_of_kimi_takes_what_its_reported_prefill_says() -> None:
    stage = estimate(KIMI).of("extract")
    start_s = rates(KIMI)["server_start_s"].value
    assert (stage.rate_source, stage.rate) == ("reported", 7500)
    assert (stage.seconds - start_s) / stage.tokens * 100e6 == pytest.approx(3.7 * 3600, rel=0.01)


def test_the_training_of_a_gpu_machine_takes_what_is_done_between_its_steps_too() -> None:
    found = estimate(KIMI)
    steps_s = 6250 * 8 * 8192 * 57_344 / 2e9
    # Before the first step, every 250 steps, and at the end.
    scored_s = 26 * 1000 * 2048 * 57_344 / 2e9
    assert scored_s > 26 * 1000 * 2048 * score_flops(KIMI) / (0.2 * 8 * 503.8e12), "reading takes longer than computing"
    saved_s = 63 * found.checkpoint_bytes / 2e9
    assert found.of("train").seconds == pytest.approx(10 + steps_s + scored_s + saved_s)
    assert scored_s > 0.1 * steps_s, "not a trifle"
    often = KIMI.model_copy(update={"train": KIMI.train.model_copy(update={"validate_every_steps": 25})})
    assert estimate(often).of("train").seconds > 1.9 * found.of("train").seconds


def test_a_fork_takes_time_and_room_only_for_the_stages_that_it_does_itself() -> None:
    whole, data = estimate(PILOT), ("prepare", "regenerate", "extract", "vocabulary")
    forked = estimate(PILOT, taken=data)
    linked = sum(whole.of(stage).bytes for stage in ("prepare", "extract", "vocabulary"))
    assert forked.needs[0].bytes == forked.peak_bytes == whole.peak_bytes - linked, "its answers are copied, so they need room"
    assert forked.seconds == sum(whole.of(stage).seconds for stage in ("train", "evaluate", "export"))
    assert "hidden states" not in forked.needs[0].what and "checkpoints" in forked.needs[0].what
    assert whole.needs[0].inodes - forked.needs[0].inodes == PILOT.data.train_prompts + PILOT.data.heldout_prompts
    trained = estimate(PILOT, taken=(*data, "train"))
    assert forked.peak_bytes - trained.peak_bytes == whole.of("train").bytes + whole.checkpoint_bytes
    assert trained.needs[0].what == "texts and logs"


def test_the_draft_is_as_large_as_the_one_that_a_real_pilot_left() -> None:
    # parameters of export/, and the bytes of train/checkpoints/step-200 without the rest of its files, of a run on two cores
    size = draft_size(PILOT)
    assert size.parameters == 38_121_408
    assert size.checkpoint_bytes == pytest.approx(61_124_495, rel=0.001)
    assert size.saved_bytes == pytest.approx(152_601_976, rel=0.001)


def test_the_pilot_on_a_cpu_is_estimated_from_measured_rates_within_a_third_of_the_run_they_were_measured_on() -> None:
    took = {"regenerate": 152.33, "extract": 62.52, "train": 102.0, "evaluate": 87.6}
    for stage, seconds in took.items():
        found = estimate(PILOT).of(stage)
        assert found.rate_source == "measured"
        assert found.seconds == pytest.approx(seconds, rel=0.33)
    assert estimate(PILOT).of("extract").bytes == pytest.approx(118_624_784, rel=0.05)


@pytest.mark.parametrize("machine", presets.names("machine"))
@pytest.mark.parametrize("target", presets.names("target"))
@pytest.mark.parametrize("size", presets.names("size"))
def test_every_preset_has_an_estimate_of_every_stage_with_its_source(size: str, target: str, machine: str) -> None:
    found = estimate(spec_of(size, target, machine))
    assert [stage.stage for stage in found.stages] == list(STAGES)
    for stage in found.stages:
        assert stage.seconds > 0 and stage.bytes > 0 and stage.basis
        assert stage.rate_source in ("measured", "reported", "derived")
    assert found.peak_bytes == sum(stage.bytes for stage in found.stages) + found.log_bytes + found.transient_bytes
    assert found.needs[0].bytes == found.peak_bytes
    assert found.needs[0].inodes > found.of("extract").tokens / found.sample_tokens
    json.dumps(found.to_json(), allow_nan=False)


def test_the_lines_of_the_estimate_add_up_and_what_is_there_only_for_a_while_is_called_so() -> None:
    found = estimate(PILOT)
    told = lines(found)
    [together], [most] = ([row for row in told if row.startswith(word)] for word in ("together", "at most"))
    assert bytes_label(sum(stage.bytes for stage in found.stages)) in together
    parts = [bytes_label(part) for part in (found.peak_bytes, found.stage_bytes, found.log_bytes, found.transient_bytes)]
    assert re.findall(r"[\d.]+ [KMGT]iB", most) == parts
    assert found.transient_bytes == found.checkpoint_bytes + found.draft_bytes
    taken = estimate(PILOT, taken=STAGES)
    assert taken.transient_bytes == 0 and "for a while" not in "".join(lines(taken))


def test_a_rate_that_nobody_has_measured_there_is_never_called_measured() -> None:
    for machine in ("8x-rtx-pro-6000", "8x-b300"):
        for target in presets.names("target"):
            assert all(rate.source != "measured" for rate in rates(spec_of("pilot", target, machine)).values())
    assert all(rate.source == "derived" for rate in rates(spec_of("pilot", "kimi-k2.5", "8x-b300")).values())
    other = rates(spec_of("pilot", "llama-3.1-8b", "cpu"))
    assert {name for name, rate in other.items() if rate.source == "measured"} == {"server_start_s"}


def test_what_this_workspace_has_measured_replaces_what_others_report() -> None:
    found = estimate(KIMI, {"extract_tok_s": {"value": 9000.0, "run": "shake-1"}, "unknown_tok_s": {"value": 1.0}})
    stage = found.of("extract")
    assert (stage.rate, stage.rate_source) == (9000.0, "measured")
    assert "shake-1" in stage.basis
    assert stage.seconds < estimate(KIMI).of("extract").seconds


def test_a_training_rate_that_was_measured_by_steps_alone_has_the_scorings_and_saves_added() -> None:
    of_the_stage = {"value": 20_000.0, "run": "shake-1"}
    bare, whole = (estimate(KIMI, {"train_tok_s": of_the_stage | more}).of("train") for more in ({}, {"of_steps": True}))
    scored_s = 26 * 1000 * 2048 / min(20_000 * train_flops(KIMI) / score_flops(KIMI), 2e9 / 57_344)
    assert whole.seconds - bare.seconds == pytest.approx(scored_s + 63 * estimate(KIMI).checkpoint_bytes / 2e9)
    assert (whole.rate_source, bare.seconds) == ("measured", pytest.approx(10 + 6250 * 8 * 8192 / 20_000))
    assert whole.basis.startswith("run shake-1 of this workspace, by its steps; 26 scorings")


@pytest.mark.parametrize("entry", [{"value": None}, {"value": 0}, {"value": -3}, {"value": "fast"}, {"value": float("nan")}, 7])
def test_a_measured_rate_that_is_no_rate_is_passed_over(entry: Any) -> None:
    assert estimate(KIMI, {"extract_tok_s": entry}).of("extract").rate_source == "reported"


def test_between_two_reported_points_a_rate_lies_between_them() -> None:
    specs = {n: spec_of("full", "kimi-k2.5", "8x-rtx-pro-6000", regenerate__concurrency=n) for n in (1, 8, 64, 500)}
    at = {n: rates(spec)["generate_tok_s"] for n, spec in specs.items()}
    assert at[1].value < at[8].value < at[64].value < at[500].value == 2026
    assert [at[n].source for n in (1, 8, 64, 500)] == ["reported", "derived", "reported", "derived"]


def test_the_operations_of_the_cpu_reference_are_those_of_its_pilot() -> None:
    from eagle3.core.rates import SMOL_TRAIN_FLOPS

    assert train_flops(PILOT) == pytest.approx(SMOL_TRAIN_FLOPS, rel=0.01)


def test_a_disk_that_is_too_small_is_told_with_the_arithmetic() -> None:
    need = Need("/data/eagle3", 10 * GIB, 10, "hidden states 9.0 GiB (1 token x 4 layers)")
    text = refusal(need, free_bytes=5 * GIB, floor_bytes=GIB)
    assert text.startswith(
        "/data/eagle3 has 5.0 GiB free, and the run needs 10.0 GiB (hidden states 9.0 GiB (1 token x 4 layers))"
    )
    assert "keeps 1.0 GiB free (disk_floor_bytes)" in text
    assert refusal(need, free_bytes=11 * GIB, floor_bytes=GIB) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__prompts": "builtin"}, "data.prompts is 'builtin', which has 288 prompts, and 101,000 are asked for"),
        ({"vocabulary__size": 200_000}, "vocabulary.size is 200,000, and kimi-k2.5 has 163,840 tokens"),
        ({"data__prompt_tokens": 9000}, "data.prompt_tokens (9,000) leaves no room for an answer"),
        ({"devices__extract": [0, 1], "server__tensor_parallel": 2}, "name more GPUs or another machine"),
    ],
)
def test_a_run_that_cannot_work_is_told_why(changes: dict[str, Any], said: str) -> None:
    assert estimate(KIMI).problems == []
    found = spec_of("full", "kimi-k2.5", "8x-rtx-pro-6000", **{"data__prompts": "/p.jsonl", **changes})
    (problem,) = estimate(found).problems
    assert said in problem and problem.endswith(".")


def test_the_builtin_prompts_are_as_many_as_the_estimate_says() -> None:
    from eagle3.core.problems import BUILTIN_PROMPTS
    from eagle3.stages.prompts import read_builtin

    assert len(read_builtin()) == BUILTIN_PROMPTS


def test_afterwards_it_says_how_far_off_it_was() -> None:
    before = estimate(PILOT).to_json()
    extract = next(stage for stage in before["stages"] if stage["stage"] == "extract")
    found = compare(before, {"extract": {"seconds": 2 * extract["seconds"], "bytes": extract["bytes"]}})
    assert found["stages"]["extract"]["seconds_ratio"] == 2.0
    assert found["stages"]["extract"]["bytes_ratio"] == 1.0
    assert "seconds_ratio" not in found["stages"]["train"]


def test_the_table_for_a_terminal_names_every_stage_and_every_source() -> None:
    text = "\n".join(lines(estimate(KIMI)))
    assert all(stage in text for stage in STAGES)
    assert "reported" in text and "derived" in text and "needs at most 10.8 TiB in ~/eagle3" in text


def test_a_share_of_the_samples_takes_its_share_of_room_and_time() -> None:
    whole = estimate(presets.resolve("full", "kimi-k2.5", "8x-b300")).of("extract")
    share = estimate(presets.resolve("full", "kimi-k2.5", "8x-b300", {"extract.world": 4})).of("extract")
    assert share.tokens == whole.tokens / 4
    assert share.bytes < 0.26 * whole.bytes and share.seconds < whole.seconds


def test_what_is_measured_at_more_concurrencies_takes_more_time_and_n_grams_a_start_of_the_server() -> None:
    once = presets.resolve("pilot", "smollm2-135m", "cpu")
    more = presets.override(once, {"evaluate.concurrencies": [1, 16]})
    beside = presets.override(more, {"evaluate.ngram": True})
    seconds = [estimate(spec).of("evaluate").seconds for spec in (once, more, beside)]
    assert seconds == sorted(seconds)
    assert seconds[2] - seconds[1] > rates(once)["server_start_s"].value
    assert estimate(more).of("regenerate").seconds > estimate(once).of("regenerate").seconds


def test_the_break_even_length_is_told_with_its_source_or_how_to_learn_it() -> None:
    pilot = estimate(presets.resolve("pilot", "smollm2-135m", "cpu"))
    assert pilot.break_even[8].value == pytest.approx(1.268 * 75.8 / 47.3)
    assert pilot.break_even[8].source == "derived"
    assert "derived: the pilot's speeds" in "\n".join(lines(pilot))
    kimi = estimate(presets.resolve("full", "kimi-k2.5", "8x-b300", {"data.prompts": "/prompts.jsonl"}))
    assert kimi.break_even == {}
    assert "`eagle3 breakeven` measures it" in "\n".join(lines(kimi))


def test_a_run_of_one_share_is_estimated_up_to_extract_where_it_ends() -> None:
    share = estimate(spec_of("full", "kimi-k2.5", "8x-b300", data__prompts="/p.jsonl", extract__world=4))
    assert [stage.stage for stage in share.stages if stage.seconds] == ["prepare", "regenerate", "extract"]
    assert share.seconds == pytest.approx(sum(share.of(stage).seconds for stage in ("prepare", "regenerate", "extract")))
    assert share.transient_bytes == 0 and share.of("train").bytes == 0, "nothing is trained, so nothing is saved"
    assert "checkpoints" not in share.needs[0].what


def test_an_evaluation_whose_answers_leave_no_room_for_a_prompt_is_a_problem_before_the_start() -> None:
    limit = PILOT.target.max_model_len
    (problem,) = estimate(spec_of("pilot", "smollm2-135m", "cpu", evaluate__max_new_tokens=limit)).problems
    assert problem.startswith("evaluate.max_new_tokens") and "lower it" in problem
    assert not estimate(PILOT).problems
