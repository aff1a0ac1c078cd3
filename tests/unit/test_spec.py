"""A RunSpec comes from presets and overrides, is refused in one sentence when wrong, and reads back as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from eagle3.core import presets
from eagle3.core.launching import launch_request
from eagle3.core.presets import SpecError, override, parse_override, resolve
from eagle3.core.spec import RunSpec, hash_of

SIZE, TARGET, MACHINE = "pilot", "smollm2-135m", "cpu"


def pilot(**overrides: Any) -> RunSpec:
    """The pilot on a CPU, with ``__`` in a name standing for the dot."""
    return resolve(SIZE, TARGET, MACHINE, {name.replace("__", "."): value for name, value in overrides.items()})


def refusal(**overrides: Any) -> str:
    """What the person who gave these overrides is told."""
    with pytest.raises(SpecError) as caught:
        pilot(**overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_every_shipped_size_target_and_machine_resolves() -> None:
    for size in presets.names("size"):
        for target in presets.names("target"):
            for machine in presets.names("machine"):
                spec = resolve(size, target, machine)
                assert (spec.size, spec.target.name, spec.machine) == (size, target, machine)


def test_the_pilot_is_64_prompts_on_a_cpu() -> None:
    assert pilot().data.train_prompts == 64
    assert pilot().device == "cpu"


@pytest.mark.parametrize(
    ("size", "target", "machine", "wrong", "near"),
    [
        ("pilott", TARGET, MACHINE, "size called 'pilott'", "did you mean 'pilot'?"),
        (SIZE, "smollm2-135", MACHINE, "target called 'smollm2-135'", "did you mean 'smollm2-135m'?"),
        (SIZE, TARGET, "cpuu", "machine called 'cpuu'", "did you mean 'cpu'?"),
    ],
)
def test_an_unknown_preset_is_refused_and_the_nearest_is_named(
    size: str, target: str, machine: str, wrong: str, near: str
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(size, target, machine)
    assert wrong in str(caught.value)
    assert near in str(caught.value)


def test_a_preset_like_no_other_is_refused_with_the_whole_list() -> None:
    with pytest.raises(SpecError, match=re.escape(", ".join(presets.names("size")))):
        presets.load("size", "zzzzzz")


def test_a_preset_name_cannot_reach_outside_the_presets() -> None:
    with pytest.raises(SpecError, match="There is no size"):
        presets.load("size", "../machines/cpu")


def test_an_unknown_field_is_refused_by_its_full_name() -> None:
    assert refusal(train__max_stepz=10) == "train.max_stepz: there is no such field; the nearest is train.max_steps."


def test_an_unknown_section_is_refused() -> None:
    assert refusal(traim__max_steps=10).startswith("traim: there is no such field")


def test_a_key_below_a_value_is_refused() -> None:
    assert refusal(size__name="x") == "size.name: 'size' is a value, not a section."


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train.max_steps", 0),
        ("train.learning_rate", 0),
        ("train.learning_rate", -1e-3),
        ("regenerate.temperature", 2.5),
        ("server.port", 65536),
        ("vocabulary.size", 15),
        ("data.heldout_prompts", 3),
        ("train.optimizer", "sgd"),
        ("device", "tpu"),
        ("train.max_steps", "many"),
        ("disk_floor_bytes", -1),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_field_and_what_was_given(field: str, value: Any) -> None:
    text = refusal(**{field: value})
    assert text.startswith(f"{field}: ")
    assert repr(value) in text


def bounded_fields() -> Iterator[tuple[str, float, str, str]]:
    """Every number of the spec beyond each of its bounds: field, value, the bound as it is told, unit."""

    def of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, float, str, str]]:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from of(kind, f"{prefix}{name}.")
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            for part in info.metadata if kind in (int, float) else ():
                for sign, beyond in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                    bound = getattr(part, sign, None)
                    if bound is not None:
                        yield f"{prefix}{name}", bound + beyond, f"{bound}", str(extra.get("unit", ""))

    return of(RunSpec, "")


@pytest.mark.parametrize(("name", "value", "bound", "unit"), bounded_fields())
def test_each_number_out_of_range_is_refused_with_its_field_its_bound_and_its_unit(
    name: str, value: float, bound: str, unit: str
) -> None:
    text = refusal(**{name: value})
    assert re.fullmatch(rf"{re.escape(name)}: a (whole )?number .*, not {re.escape(repr(value))}\.", text)
    said = text.removeprefix(f"{name}: ").rpartition(", not ")[0]
    assert float(bound) in [float(number) for number in re.findall(r"\d[\d.e-]*", said.replace(",", ""))]
    assert said.endswith(f" ({unit})") if unit else not said.endswith(")")


def test_no_number_but_a_seed_is_without_a_bound_and_none_is_infinite() -> None:
    def numbers(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, info in model.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from numbers(info.annotation, f"{prefix}{name}.")
            elif info.annotation in (int, float):
                yield f"{prefix}{name}", info.annotation

    bounded = {name for name, *_ in bounded_fields()}
    every = dict(numbers(RunSpec, ""))
    assert every.keys() - bounded == {"data.seed", "train.seed"}
    for name, kind in every.items():
        if kind is float:
            for value in (float("inf"), float("nan")):
                assert refusal(**{name: value}).endswith(f", not {value}.")


def test_several_wrong_fields_are_counted() -> None:
    text = refusal(train__max_steps=0, train__pack_tokens=0, vocabulary__size=1)
    assert "; 2 more fields wrong." in text


@pytest.mark.parametrize("layers", [[2, 15], [2, 15, 27, 29], []])
def test_other_than_three_auxiliary_layers_are_refused(layers: list[int]) -> None:
    assert refusal(target__auxiliary_layers=layers).startswith("target.auxiliary_layers: ")


@pytest.mark.parametrize("layers", [[15, 2, 27], [2, 2, 27], [0, 15, 27], [2, 15, 30]])
def test_auxiliary_layers_out_of_order_doubled_or_beyond_the_model_are_refused(layers: list[int]) -> None:
    assert "must be three different ids, ascending, between 1 and 29" in refusal(target__auxiliary_layers=layers)


def test_the_captured_layers_are_the_auxiliary_ones_and_the_last() -> None:
    assert pilot().target.captured_layers == [2, 15, 27, 30]


def test_more_evaluation_prompts_than_held_out_ones_are_refused() -> None:
    assert "must not exceed data.heldout_prompts (20)" in refusal(evaluate__prompts=21)


def test_a_share_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match=r"extract\.rank \(3\) must be below extract\.world \(3\)"):
        presets.resolve("pilot", "smollm2-135m", "cpu", {"extract.rank": 3, "extract.world": 3})


def test_more_requests_in_flight_than_prompts_are_refused() -> None:
    assert "concurrencies [1, 64] must not exceed prompts (20)" in refusal(evaluate__concurrencies=[1, 64])
    assert pilot(evaluate__concurrencies=[16, 1]).evaluate.levels == [1, 8, 16]


def test_temperatures_without_0_are_refused() -> None:
    assert "must hold 0" in refusal(evaluate__temperatures=[0.7])


def test_a_spec_from_before_a_field_was_there_still_loads_with_its_default() -> None:
    new = ("heldout_kinds", "concurrencies", "temperatures", "ngram")
    lines = pilot().to_toml().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(new)]
    assert len(lines) - len(older) == len(new)
    assert RunSpec.from_toml("".join(older)) == pilot()


def test_a_later_table_wins_and_leaves_its_neighbours_alone() -> None:
    changed = pilot(server__env={"EXTRA": "1"}, train__max_steps=7)
    assert changed.server.env == {"EXTRA": "1"}
    assert changed.server.args == pilot().server.args
    assert changed.train.model_copy(update={"max_steps": pilot().train.max_steps}) == pilot().train


def test_a_spec_cannot_be_changed_after_it_is_resolved() -> None:
    spec, field = pilot(), "workspace"
    with pytest.raises(ValidationError, match="frozen"):
        setattr(spec, field, "/elsewhere")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.max_steps=200", "train.max_steps", 200),
        ("train.learning_rate=1e-4", "train.learning_rate", 1e-4),
        ("target.trust_remote_code=true", "target.trust_remote_code", True),
        ("target.auxiliary_layers=[2, 15, 27]", "target.auxiliary_layers", [2, 15, 27]),
        ("workspace=/data/eagle3", "workspace", "/data/eagle3"),
        ('workspace="/data/eagle3"', "workspace", "/data/eagle3"),
        ("data.prompts=a=b.jsonl", "data.prompts", "a=b.jsonl"),
        ("group=", "group", ""),
        (" train.max_steps = 5", "train.max_steps", 5),
    ],
)
def test_an_override_is_read_as_toml_or_as_plain_text(text: str, key: str, value: Any) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["train.max_steps", "", "=5", "  =5"])
def test_an_override_without_a_field_or_an_equals_sign_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SpecError, match=r"train\.max_steps=200"):
        parse_override(text)


@given(st.text())
def test_no_text_given_as_an_override_raises_anything_but_a_spec_error(text: str) -> None:
    try:
        key, _ = parse_override(text)
    except SpecError as error:
        assert "field=value" in str(error)
    else:
        assert key and "=" in text


@given(st.integers(1, 10**9))
def test_an_integer_override_reaches_its_field(steps: int) -> None:
    key, value = parse_override(f"train.max_steps={steps}")
    assert resolve(SIZE, TARGET, MACHINE, {key: value}).train.max_steps == steps


json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
specs = st.fixed_dictionaries(
    {},
    optional={
        "workspace": json_text.filter(bool),
        "group": st.none() | json_text,
        "grace_s": st.floats(0, 1e6),
        "server.env": st.dictionaries(json_text, json_text, max_size=3),
        "server.args": st.lists(json_text, max_size=3),
        "train.learning_rate": st.floats(1e-12, 1),
        "train.max_steps": st.integers(1, 10**9),
        "data.seed": st.integers(-(2**31), 2**31),
        "regenerate.temperature": st.floats(0, 2),
        "target.trust_remote_code": st.booleans(),
    },
).map(lambda overrides: resolve(SIZE, TARGET, MACHINE, overrides))


@given(specs)
def test_a_spec_written_as_toml_reads_back_as_the_same_spec_with_the_same_hash(spec: RunSpec) -> None:
    back = RunSpec.from_toml(spec.to_toml())
    assert back == spec
    assert back.hash == spec.hash


@given(specs, specs)
def test_two_specs_have_the_same_hash_exactly_when_they_are_equal(one: RunSpec, other: RunSpec) -> None:
    assert (one.hash == other.hash) == (one == other)


def test_the_hash_is_sixteen_hex_digits_and_does_not_depend_on_the_order_of_keys() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", pilot().hash)
    assert hash_of({"a": 1, "b": [2, {"c": 3, "d": 4}]}) == hash_of({"b": [2, {"d": 4, "c": 3}], "a": 1})


def test_the_hash_of_a_known_value_never_changes() -> None:
    # A run of last year is compared by this hash: a new way to compute it would orphan every record.
    assert hash_of({"v": 1, "size": "pilot", "name": "größe"}) == "c8f157cb077b5569"


def test_a_size_without_numbers_for_this_kind_of_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"machine": {"kind": "gpu"}, "size": {"cpu": {}}, "target": {}}
    monkeypatch.setattr(presets, "load", lambda kind, name: dict(tables[kind]))
    with pytest.raises(SpecError, match="The size 'pilot' has no numbers for a machine of kind 'gpu'"):
        presets.resolve("pilot", "t", "m")


def test_a_launch_carries_the_alerts_only_where_somebody_is_to_be_told() -> None:
    quiet = resolve("smoke", "smollm2-135m", "cpu")
    assert launch_request(quiet, default_python="python3", pythonpath="")["hooks"] is None
    told = resolve("smoke", "smollm2-135m", "cpu", {"alerts.webhook_env": "HOOK", "alerts.on": ["stall", "failure"]})
    hooks = launch_request(told, default_python="python3", pythonpath="")["hooks"]
    assert (hooks["webhook_env"], hooks["on"], hooks["timeout_s"]) == ("HOOK", ["stall", "failure"], 20)
    with pytest.raises(SpecError, match=r"alerts\.on"):
        resolve("smoke", "smollm2-135m", "cpu", {"alerts.on": ["full_moon"]})


def test_a_training_has_a_rank_for_each_of_its_gpus_and_a_pack_for_each_rank() -> None:
    cpu, gpus = pilot(), resolve("pilot", "qwen3-8b", "8x-b300")
    assert (cpu.train_ranks, cpu.packs_per_step) == (1, 1)
    assert (gpus.train_ranks, gpus.packs_per_step) == (8, 8)
    half = override(gpus, {"devices.train": [0, 1, 2, 3]})
    assert (half.train_ranks, half.packs_per_step) == (4, 8), "the same training on fewer GPUs"
    assert override(cpu, {"train.ranks": 2}).packs_per_step == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.ranks": 3, "train.packs_per_step": 4}, "train.packs_per_step (4) must be a multiple of the 3 ranks"),
        ({"train.ranks": 65}, "train.ranks"),
        ({"train.export_best": True}, "train.export_best needs train.keep_best = true"),
        ({"train.kind": "medusa"}, "train.kind"),
        ({"train.checkpoint_every_minutes": -1}, "train.checkpoint_every_minutes"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(SpecError, match=re.escape("train.ranks (9) must not exceed the 8 GPUs of devices.train")):
        override(resolve("pilot", "qwen3-8b", "8x-b300"), {"train.ranks": 9})
