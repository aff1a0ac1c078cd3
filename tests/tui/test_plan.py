"""The choices of the Launch screen, resolved and said in numbers."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from eagle3.core import presets, rates
from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError
from eagle3.core.records import Disk, Probe
from eagle3.core.stage_order import STAGES
from tests.tui.support.container import GIB, eight_gpus
from tests.tui.support.folders import NOW
from tui import expect, fields, plan
from tui.fields import listed
from tui.plan import Choices, first_choices, for_machine, launched_words, new_run_id, resolve
from tui.state import Console
from tui.widgets.effects import Amounts, effects_text


def choices(typed: dict[str, str] | None = None, **values: str) -> Choices:
    return Choices(typed=typed or {}, **{"target": "smollm2-135m", "machine": "cpu", **values})


def on_gpus(**values: str) -> Choices:
    return choices({"data.prompts": "/data/p.jsonl"}, machine="8x-b300", **values)


def test_empty_fields_leave_the_presets_numbers() -> None:
    assert resolve(choices()) == presets.resolve("pilot", "smollm2-135m", "cpu")


def test_typed_fields_override_the_preset() -> None:
    typed = {"data.train_prompts": "5,000", "train.max_steps": " 20 ", "data.prompts": "~/p.jsonl"}
    spec = resolve(choices({**typed, "workspace": "/data/e", "train.seed": "3"}))
    assert (spec.data.train_prompts, spec.train.max_steps, spec.train.seed) == (5000, 20, 3)
    assert (spec.data.prompts, spec.workspace) == ("~/p.jsonl", "/data/e")


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("data.train_prompts", "many", "data.train_prompts: a whole number of 1 or more (prompts), not 'many'."),
        ("train.max_steps", "0", "train.max_steps: a whole number of 1 or more (steps), not 0."),
        ("train.optimizer", "sgd", "train.optimizer: 'adamw' or 'muon', not 'sgd'."),
        ("data.prompts", "p.jsonl", "data.prompts: 'p.jsonl' is a path in the container, so it must begin with / or ~/."),
        ("workspace", "here", "workspace: 'here' is a path in the container, so it must begin with / or ~/."),
        ("train.max_step", "3", "train.max_step: there is no such field; the nearest is train.max_steps."),
        ("machine", "b30", "There is no machine called 'b30'; did you mean '8x-b300'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(field: str, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(choices().with_field(field, text))
    assert str(caught.value).startswith(words)
    assert field == "machine" or words.startswith(f"{field}: {caught.value.fields[field][:20]}")


def test_every_field_that_is_wrong_is_told_at_its_own_place() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(choices({"train.max_steps": "0", "evaluate.concurrency": "x", "devices.train": "0, a"}))
    assert set(caught.value.fields) == {"train.max_steps", "evaluate.concurrency", "devices.train"}


def test_numbers_typed_for_one_size_do_not_carry_over_to_another() -> None:
    typed = choices({"train.max_steps": "3", "workspace": "/w"}, size="smoke")
    assert typed.with_size("pilot") == choices({"workspace": "/w"}, size="pilot")
    same = choices({"train.max_steps": "3"})
    assert same.with_size("pilot") is same


def test_an_emptied_field_takes_the_presets_value_again() -> None:
    assert choices({"train.max_steps": "3"}).with_field("train.max_steps", " ") == choices()


def test_what_differs_from_the_preset_is_listed_with_both_values() -> None:
    typed = choices({"train.max_steps": "70", "train.seed": "0", "server.args": "--foo 'a b'"})
    assert list(listed(plan.changes(typed, resolve(typed)))) == [
        'server.args: ["--enforce-eager"] → ["--foo", "a b"]',
        f"train.max_steps: {resolve(choices()).train.max_steps} → 70",
    ]


TYPED = {
    "train.max_steps": "70", "train.learning_rate": "1e-05", "workspace": "/data/my runs", "server.args": '--foo "a b" --c=$HOME',
    "server.env": '{A = "it\'s", B = "2"}', "data.prompts": "~/p; rm -rf x.jsonl", "alerts.on": "finish stall", "group": "7",
    "share_device": "true", "evaluate.broken_below": "0.05", "server_python": "/opt/v/bin/python",
}  # fmt: skip


@pytest.mark.parametrize("machine", ["cpu", "8x-b300"])
def test_the_command_that_is_shown_makes_the_same_spec(machine: str) -> None:
    """Read back as a shell and the commands' own ``--set`` read it; the workspace is an option of its own."""
    gpus = {"devices.train": "0,1"} if machine != "cpu" else {}
    typed = choices(TYPED | gpus, machine=machine, secrets="HF_TOKEN")
    for command in plan.commands(typed, resolve(typed), "box"):
        words = shlex.split(command)
        options = list(itertools.pairwise(words))
        pairs = dict(presets.parse_override(value) for name, value in options if name == "--set")
        given = {name: value for name, value in options if name.startswith("--")}
        made = presets.resolve(
            given["--size"], given["--target"], given["--machine"], pairs | {"workspace": given["--workspace"]}
        )
        assert made.hash == resolve(typed).hash
        assert given["--secret"] == "HF_TOKEN"
    here, there = plan.commands(choices(), resolve(choices()), "this machine", "/usr/bin/python3")
    assert here.startswith("eagle3-tui launch --local --python /usr/bin/python3 --size pilot")
    assert there == "eagle3 run --size pilot --target smollm2-135m --machine cpu"


def test_fields_are_found_by_words_of_their_name_or_help() -> None:
    assert [field.name for field in fields.found("learning rate")] == ["train.learning_rate", "train.warmup_steps"]
    assert fields.found("gpus list")[0].name.startswith("devices.")
    assert len(fields.found("")) == len(fields.every()) and not fields.found("no such words")


def test_the_form_shows_gpu_fields_only_where_there_are_gpus() -> None:
    assert "devices.train" in fields.that_matter("pilot", "gpu") and "devices.train" not in fields.that_matter("pilot", "cpu")
    for size in plan.SIZES:
        for kind in ("cpu", "gpu"):
            assert set(fields.that_matter(size, kind)) <= set(fields.every())


def test_the_machine_follows_what_the_probe_saw_as_far_as_presets_go() -> None:
    assert for_machine(first_choices(), None).machine == "cpu"
    assert for_machine(first_choices(), Probe(gpu=eight_gpus())).machine in plan.presets.names("machine")


def test_gpus_choose_the_machine_that_has_them() -> None:
    for name, machine in (("NVIDIA B300 SXM6 AC", "8x-b300"), ("NVIDIA RTX PRO 6000 Blackwell", "8x-rtx-pro-6000")):
        seen = eight_gpus()
        gpus = [gpu.model_copy(update={"name": name}) for gpu in seen.gpus]
        assert for_machine(first_choices(), Probe(gpu=seen.model_copy(update={"gpus": gpus}))).machine == machine


def test_the_expected_time_says_how_sure_it_is() -> None:
    assert expect.time_line(estimate(resolve(choices()))).endswith("rates measured)")
    assert expect.time_line(estimate(resolve(on_gpus()))).endswith("rates derived)")


def test_rates_that_the_workspace_has_measured_count_before_all_others() -> None:
    spec, console = resolve(choices()), Console("box")
    measured = {rates.key(spec): {"train_tok_s": {"value": 5.0, "run": "run-a"}}}
    console.take_probe(Probe(rates=measured), NOW)
    assert expect.expected(console, spec).seconds == estimate(spec).seconds, "those of another workspace say nothing"
    console.workspace = spec.workspace
    assert expect.expected(console, spec).of("train").rate == 5.0


def test_what_is_free_says_as_of_when_it_is_where_that_is_not_now() -> None:
    spec, console = resolve(choices()), Console("box", poll_s=5)
    console.take_probe(Probe(disks=[Disk(path="/", total_bytes=10**12, free_bytes=10**12)]), NOW)
    assert expect.as_of(console, NOW + 10) == ""
    old = expect.as_of(console, NOW + 7200)
    rows = dict(expect.launch_rows(console, spec, "pilot-1", old=old))
    assert rows["Disk"].endswith("free on / as of 2 h ago")
    shown = effects_text(Amounts(spec, estimate(spec), {}, ("", "")), console.probe.value, old=old)
    assert "free on / as of 2 h ago" in shown.plain


def effects(chosen: Choices, measured: Mapping[str, Any] | None = None) -> list[str]:
    spec = resolve(chosen)
    return effects_text(Amounts(spec, estimate(spec, measured), {}, ("", "")), None).plain.splitlines()


def test_from_which_length_a_draft_pays_stands_with_the_estimate_and_says_how_that_is_known() -> None:
    def told(chosen: Choices, measured: Mapping[str, Any] | None = None) -> list[str]:
        return [line for line in effects(chosen, measured) if line.startswith("break-even")]

    [pilot] = told(choices())
    assert "from an acceptance length of 2.03 on, 8 in flight  derived: the pilot's speeds on two cores" in pilot
    name = rates.break_even_name(resolve(choices()), 8)
    [own] = told(choices(), {name: {"value": 2.2, "run": rates.BREAK_EVEN_BY["measured"]}})
    assert "length of 2.20 on, 8 in flight  measured: vLLM's synthetic acceptance" in own
    assert "is not known: `eagle3 breakeven` measures it" in told(on_gpus())[0]


def test_the_estimate_of_every_preset_fits_half_of_120_columns_unbroken() -> None:
    """60 columns, less the border, its padding and a scroll bar."""
    for size, target, machine in itertools.product(plan.SIZES, presets.names("target"), presets.names("machine")):
        table = effects(Choices(size, target, machine, {"data.prompts": "/data/p.jsonl"}))[:8]
        assert table[0].split() == ["disk", "time", "GPUs", "tokens/s", "source"]
        assert [line.split()[0] for line in table[1:]] == [*STAGES]
        assert max(map(len, table)) <= 55, "\n".join(table)


def test_a_run_that_cannot_work_is_not_launched() -> None:
    assert plan.launchable(on_gpus()) == resolve(on_gpus())
    with pytest.raises(SpecError, match=r"set data\.prompts to a JSONL file"):
        plan.launchable(choices(machine="8x-b300"))
    assert plan.resolves(choices(machine="8x-b300")) and not plan.resolves(choices({"x": "1"}))


def test_the_disk_line_says_when_it_is_not_enough() -> None:
    spec = resolve(choices())
    assert "unknown" in expect.disk_line(None, spec)
    low = Probe(disks=[Disk(path="~/eagle3", mount="/", total_bytes=9 * GIB, free_bytes=GIB // 2)])
    assert "not enough" in expect.disk_line(low, spec)
    assert "needs at most 742 MiB" in expect.disk_line(low, spec)


def test_the_gpu_line_holds_the_weights_against_what_is_free_on_the_cards_of_the_stages() -> None:
    assert expect.gpu_line(Probe(gpu=eight_gpus()), resolve(choices())) == ""
    assert "GPUs not seen" in expect.gpu_line(None, resolve(on_gpus()))
    seen = eight_gpus()
    assert expect.gpu_line(Probe(gpu=seen), resolve(on_gpus(target="kimi-k2.5"))).endswith("on GPU 7 — not enough")
    few = seen.model_copy(update={"gpus": seen.gpus[:2]})
    assert expect.gpu_line(Probe(gpu=few), resolve(on_gpus(target="kimi-k2.5"))).endswith("the container has no GPU 2-7")


def test_a_run_id_is_made_of_size_time_and_chance() -> None:
    run_id = new_run_id("pilot", NOW, pick=lambda letters: letters[0])
    assert run_id.startswith("pilot-20") and run_id.endswith("-aaaa")
    assert len({new_run_id("pilot", NOW) for _ in range(50)}) == 50


def test_a_launch_that_waits_for_what_yields_to_it_is_not_said_to_run() -> None:
    assert launched_words({"state": "running", "started": {"t": 1}}, "r", "box") == "Launched r on box; it goes on by itself."
    waits = launched_words({"state": "starting", "started": {}}, "r", "box")
    assert waits == "Launched r on box; it starts by itself when what yields to it has stopped."
    assert launched_words({"state": "running", "already": True}, "r", "box").startswith("Found r on box;")
