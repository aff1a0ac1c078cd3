"""A model's folder through the worker's own libraries: the target as it is, and copies of it with one fault each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.readiness.report import Check
from eagle3.readiness import sections
from eagle3.readiness.scripts import model
from tests.readiness.support import TARGET, judged, wants

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
INVITED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The target's folder; its weights are a link to the real ones."""
    place = tmp_path / "model"
    place.mkdir()
    for file in TARGET.iterdir():
        if file.suffix == ".safetensors":
            (place / file.name).symlink_to(file)
        else:
            (place / file.name).write_bytes(file.read_bytes())
    return place


def checks_of(folder: Path, **expect: Any) -> dict[str, Check]:
    """The judged answer of the script, run in this process: the worker's libraries are loaded once."""
    asked = {"folder": str(folder), "trust_remote_code": False}
    facts = {"folder": str(folder), "expect": {"hidden_size": 576, "num_hidden_layers": 30, **expect}, **model.answer_of(asked)}
    return judged("deep.model", facts)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def template(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text)


def test_the_target_as_it_is_passes_in_a_process_of_its_own(tmp_path: Path) -> None:
    facts = sections.model(wants(tmp_path), tmp_path)
    told = judged("deep.model", facts)
    assert {check.status for check in told.values()} == {"ok"} and len(told) == 4, told
    mask = told["model.loss_mask"]
    assert "16 of 69 tokens supervised" in mask.evidence
    assert "⟦Red, yellow and blue.<|im_end|>\n⟧" in mask.detail, "the sample shows what is learnt"


def test_a_tokenizer_that_does_not_give_back_what_it_got(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda content: content.update(normalizer={"type": "Lowercase"}))
    check = checks_of(folder)["model.round_trip"]
    assert check.status == "fail" and "the quick brown fox" in check.evidence


def test_a_tokenizer_file_that_is_cut_off(folder: Path) -> None:
    content = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(content[: len(content) // 2])
    told = checks_of(folder)
    assert told["model.round_trip"].status == "fail"
    assert (told["model.conversation"].status, told["model.loss_mask"].status) == ("skipped", "skipped")


def test_a_template_that_drops_what_the_assistant_says_supervises_nothing(folder: Path) -> None:
    template(
        folder, "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    check = checks_of(folder)["model.loss_mask"]
    assert check.status == "fail" and "0 of " in check.evidence and "nothing would be learnt" in check.evidence


def test_a_template_that_rewrites_earlier_turns(folder: Path) -> None:
    # As templates do that drop the thoughts of all answers but the last.
    keep = "{% for m in messages %}{% if m.role == 'user' or loop.last %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template(folder, keep + "{% endif %}{% endfor %}" + INVITED)
    check = checks_of(folder)["model.conversation"]
    assert check.status == "warn" and "rewrites 1 of 2" in check.evidence


def test_a_template_without_an_invitation_teaches_the_role_too(folder: Path) -> None:
    template(folder, CHATML)
    assert checks_of(folder)["model.conversation"].status == "warn"
    template(folder, CHATML + INVITED)
    assert checks_of(folder)["model.conversation"].status == "ok", "mended"


def test_a_template_that_raises_or_is_not_there(folder: Path) -> None:
    template(folder, "{{ raise_exception('only the system may speak') }}")
    check = checks_of(folder)["model.conversation"]
    assert check.status == "fail" and "only the system may speak" in check.evidence
    (folder / "chat_template.jinja").unlink()
    assert checks_of(folder)["model.conversation"].status == "fail"


def test_code_of_the_models_own_is_not_run_and_its_need_is_told(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('run')\n")
    auto = {"AutoTokenizer": ["own.Own", None]}
    edit(folder / "tokenizer_config.json", lambda content: content.update(auto_map=auto, tokenizer_class="Own"))
    check = checks_of(folder)["model.round_trip"]
    assert check.status == "fail" and "trust_remote_code" in check.evidence + check.remedy


def test_another_models_size_and_an_unknown_kind_of_model(folder: Path) -> None:
    check = checks_of(folder, hidden_size=7168)["model.loads"]
    assert check.status == "fail" and "hidden_size is 576, the spec says 7168" in check.evidence
    check = checks_of(folder, max_model_len=100_000)["model.loads"]
    assert check.status == "warn" and "8192" in check.evidence
    edit(folder / "config.json", lambda content: content.update(model_type="of-next-year", architectures=["OfNextYear"]))
    assert checks_of(folder)["model.loads"].status == "fail"


def test_a_model_that_is_no_folder_here_is_skipped_not_passed(tmp_path: Path) -> None:
    told = judged("deep.model", sections.model(wants(tmp_path, model="org/name"), tmp_path))
    assert {check.status for check in told.values()} == {"skipped"}
