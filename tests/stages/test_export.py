"""The exported folder: whole, portable, put in place in one step, and with a card that says only what was measured."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from eagle3 import draft_folder
from eagle3.core.acceptance import Acceptance
from eagle3.core.lossless import Divergence, Lossless
from eagle3.core.model_card import render, serve_command
from eagle3.core.verdict import Evidence, judge
from eagle3.stages import export
from eagle3.stages.context import StageError
from tests.stages.drafts import TINY_CONFIG, tiny_draft
from tests.stages.runs import context

DRAFT = {"parameters": 34_580_736, "bytes": 138_391_889, "draft_vocab_size": 8192, "vocab_size": 49152}


def figures() -> dict[str, dict[str, Any]]:
    acceptance = Acceptance(1300, 3900, 364, (286, 65, 13))
    lossless = Lossless(3, 4, 150, 0.02, [Divergence("held-1", 7, " cat", " d|og", 0.001, 0.002, True, "The")])
    verdict = judge(Evidence(acceptance, 20.0, 28.0, 8, lossless), min_drafts=200, broken_below=0.1)
    served = {
        **acceptance.figures(),
        "prompts": 20,
        "concurrency": 8,
        "tok_s": 20.0,
        "tok_s_no_draft": 28.0,
        "break_even_len": 1.79,
    }
    return {
        "train": {
            "steps": 173,
            "val": {"accept_len": 1.49, "acc_pos": [0.33, 0.12, 0.04]},
            "untrained": {"acc_pos": [0.04, 0.0, 0.0]},
        },
        "vocabulary": {"size": 8192, "coverage": 0.987},
        "evaluate": {"served": served, "lossless": lossless.to_json(), **verdict.to_json()},
    }


def card(tmp_path: Path, made: dict[str, dict[str, Any]], **overrides: Any) -> str:
    spec = context(tmp_path, **overrides).spec
    return render(
        spec, made, run_id="pilot-1", target="~/targets/it", draft=DRAFT, versions={"vllm": "0.32.0", "torch": "2.13.0"}
    )


def test_the_card_states_the_served_figures_with_their_counts_and_the_verdict(tmp_path: Path) -> None:
    text = card(tmp_path, figures())
    assert (
        "| acceptance length, served | 1.28 (1.25 to 1.31, drafts taken for independent) | 1,300 drafts, 20 held-out prompts |"
        in text
    )
    assert "Not useful on this machine" in text
    assert "| same answer as without the draft | 3 of 4 |" in text
    assert "173 steps" in text and "98.7% of the tokens" in text
    assert "| vllm | 0.32.0 |" in text


def test_the_card_says_what_its_intervals_take_for_independent(tmp_path: Path) -> None:
    assert "Intervals are 95 % with the drafts taken for independent, so the truth is wider" in card(tmp_path, figures())
    made = figures()
    made["evaluate"]["served"] |= {"answers": 20, "accept_len_interval": [1.2, 1.36]}
    text = card(tmp_path, made)
    assert "| acceptance length, served | 1.28 (1.20 to 1.36) | 1,300 drafts" in text
    assert "take the 20 answers for independent, not their drafts" in text


def test_simulated_figures_are_called_so_and_stand_apart(tmp_path: Path) -> None:
    text = card(tmp_path, figures())
    assert "| acceptance length, simulated | 1.49 |" in text
    assert "they overstate" in text


def test_a_run_that_was_not_evaluated_has_a_card_that_says_so(tmp_path: Path) -> None:
    text = card(tmp_path, {})
    assert "There is no verdict: the draft was not evaluated." in text
    assert "| acceptance length, served | not measured |" in text


def test_the_front_matter_names_the_target_only_where_others_can_find_it(tmp_path: Path) -> None:
    assert "base_model" not in card(tmp_path, {}).split("---")[1]
    shared = card(tmp_path, {}, target__model="org/model")
    assert 'base_model: "org/model"' in shared.split("---")[1]
    assert shared.startswith("---\n")


def test_every_row_of_a_table_has_the_same_number_of_cells(tmp_path: Path) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", card(tmp_path, figures()), flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_command_on_the_card_is_the_one_that_was_measured(tmp_path: Path) -> None:
    spec = context(tmp_path).spec
    command = serve_command(spec, "~/targets/it")
    assert command in card(tmp_path, figures())
    assert " --model ~/targets/it " in command, "a quoted tilde would not be expanded"
    words = shlex.split(command)
    assert "VLLM_CPU_NUM_OF_RESERVED_CPU=0" in words and "--enforce-eager" in words
    config = json.loads(words[words.index("--speculative_config") + 1])
    assert config == {"method": "eagle3", "model": "export", "num_speculative_tokens": 3}


def test_the_exported_folder_is_whole_and_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    tiny_draft(tmp_path / "train" / "draft")
    found = export.run(ctx)
    place = tmp_path / "export"
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert found["path"] == str(place)
    assert found["bytes"] == sum(path.stat().st_size for path in place.iterdir())
    assert draft_folder.check(place).draft_vocab_size == 4
    for name in ("config.json", "README.md"):
        text = (place / name).read_text()
        assert str(tmp_path) not in text and "/home/" not in text and str(Path.home()) not in text
    config = json.loads((place / "config.json").read_text())
    assert config["speculators_config"]["verifier"] == {"name_or_path": None, "architectures": ["LlamaForCausalLM"]}
    assert config["eagle_aux_hidden_state_layer_ids"] == TINY_CONFIG["eagle_aux_hidden_state_layer_ids"]


def test_exporting_again_replaces_the_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    tiny_draft(tmp_path / "train" / "draft")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "stale.txt").write_text("of an earlier attempt")
    (tmp_path / ".export.building").mkdir()
    (tmp_path / ".export.building" / "half.safetensors").write_text("a killed attempt's")
    export.run(ctx)
    assert not (tmp_path / "export" / "stale.txt").exists()
    assert not list(tmp_path.glob(".export*"))


def test_a_target_with_a_hub_id_stays_named_in_the_configuration() -> None:
    config = draft_folder.portable_config(TINY_CONFIG, "org/model")
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    assert TINY_CONFIG["speculators_config"]["verifier"]["name_or_path"] == "/home/someone/target", "the original stays"


def test_code_that_the_folder_does_not_carry_is_not_asked_for() -> None:
    assert "auto_map" not in draft_folder.portable_config({**TINY_CONFIG, "auto_map": {"": "config.X"}}, None)


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_a_draft_without_its_vocabulary_map_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StageError, match=f"vocabulary map {name} is missing"):
        draft_folder.check(tiny_draft(tmp_path, without=name))


def test_a_vocabulary_map_of_identical_ids_or_shifted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="do not describe the same tokens"):
        draft_folder.check(tiny_draft(tmp_path, offset=1))


def test_a_map_of_another_size_than_the_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="d2t maps 3 tokens and draft_vocab_size is 4"):
        draft_folder.check(tiny_draft(tmp_path, known=(0, 2, 5)))


def test_weights_cut_short_are_refused_and_nothing_is_exported(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    weights = tiny_draft(tmp_path / "train" / "draft") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(StageError, match=r"model\.safetensors is not a whole safetensors file"):
        export.run(ctx)
    assert not (tmp_path / "export").exists()


def test_a_missing_draft_is_named_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"train/draft cannot be served: config\.json is missing\. Train it again"):
        export.run(context(tmp_path))


@pytest.mark.parametrize("text", ["{", "{}", '{"speculators_model_type": "dflash"}'])
def test_a_configuration_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tiny_draft(tmp_path) / "config.json").write_text(text)
    with pytest.raises(StageError, match=r"config\.json"):
        draft_folder.check(tmp_path)
