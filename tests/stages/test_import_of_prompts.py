"""An import of the sizes that matter, and one that is not flattered: room, prompts, and what the answers are worth."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eagle3 import work
from eagle3.importing import room
from eagle3.importing.evaluation_prompts import Asked
from eagle3.rows import read_rows
from eagle3.stages import extract, prepare, regenerate
from eagle3.stages.context import StageError
from eagle3.stages.prompts import Prompt
from eagle3.stages.samples import Template
from tests.stages.runs import TARGET, rows
from tests.stages.test_importing import COUNT, SMALL, context, imported, made_elsewhere, refused, speculators

__all__ = ["made_elsewhere"]

ANSWER = " It is so because of what it is made of, and of where it has been."
SUBJECTS = (
    "bread", "tides", "bicycles", "winter", "maps", "clocks", "lentils", "mountains", "semaphores", "ink", "bridges", "honey",
    "glass", "kites", "salt", "owls",
)  # fmt: skip


def question(number: int) -> str:
    return f"What should a child of ten know about {SUBJECTS[number]}?"


def conversations() -> tuple[list[list[int]], list[list[int]]]:
    """Tokens and masks of sixteen answered questions: every second one was asked under another system prompt and in capitals,
    as another's preparation may do."""
    template = Template(TARGET)
    ids, masks = [], []
    for number in range(COUNT):
        text = question(number)
        said = [{"role": "user", "content": text}]
        if number % 2:
            said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f" {text.upper()}  "}]
        asked = template.render(said)
        answer = template._tokenizer(f"{number}{ANSWER}", add_special_tokens=False)["input_ids"]
        ids.append([*asked, *answer])
        masks.append([0] * len(asked) + [1] * len(answer))
    return ids, masks


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids, masks = conversations()
    return speculators(tmp_path_factory.mktemp("answered") / "data", input_ids=ids, loss_mask=masks)


def prompts_file(folder: Path, count: int = COUNT, kind: str = "explain") -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": question(number), "kind": kind}) + "\n" for number in range(count)))
    return file


def test_an_import_asks_neither_for_training_prompts_nor_for_the_room_of_states_that_are_there(
    made_elsewhere: Path, tmp_path: Path
) -> None:
    found = imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL, "--set", "data.train_prompts=1000000")
    assert found.exit_code == 0, found.output
    prompts = read_rows(tmp_path / "runs" / "new" / "data" / "prompts.jsonl")
    assert [row["split"] for row in prompts] == ["heldout"] * 6


def test_an_import_holds_out_the_prompts_that_a_run_of_the_same_spec_would(made_elsewhere: Path, tmp_path: Path) -> None:
    assert imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL).exit_code == 0
    ctx = context(tmp_path / "runs" / "new")
    theirs = [row for row in read_rows(ctx.path("data", "prompts.jsonl")) if row["split"] == "heldout"]
    prepare.run(ctx)
    assert [row for row in read_rows(ctx.path("data", "prompts.jsonl")) if row["split"] == "heldout"] == theirs


def test_no_row_that_asks_a_prompt_of_the_evaluation_is_trained_on(answered: Path, tmp_path: Path) -> None:
    file = prompts_file(tmp_path)
    found = imported(tmp_path, str(answered), "--id", "new", *SMALL, "--set", f"data.prompts={file}")
    assert found.exit_code == 0, found.output
    assert "6 ask a prompt of the evaluation, so the draft is not trained on them" in found.stdout
    data = tmp_path / "runs" / "new" / "data"
    asked = {row["turns"][0] for row in read_rows(data / "prompts.jsonl")}
    heldout = {question(row["index"]) for row in read_rows(data / "samples.jsonl") if row["split"] == "heldout"}
    assert len(asked) == 6 and heldout == asked


def test_a_conversation_that_begins_with_such_a_prompt_is_found_though_only_its_last_answer_teaches() -> None:
    template = Template(TARGET)
    asked = Asked([Prompt("one", "explain", (question(0),))], template)
    first = [{"role": "user", "content": question(0)}, {"role": "assistant", "content": ANSWER}]
    other = [{"role": "user", "content": question(1)}, {"role": "assistant", "content": ANSWER}]
    for turns, found in (([*first, *other], True), ([*other, *other], False)):
        ids = template.render(turns, invite=False)
        assert asked.by({"input_ids": ids, "loss_mask": [0] * (len(ids) - 5) + [1] * 5}) is found


def test_a_prompt_is_not_found_at_the_end_of_a_longer_word() -> None:
    template = Template(TARGET)
    asked = Asked([Prompt("one", "explain", ("hi",))], template)
    for text, found in (("hi", True), ("HI ", True), ("Where is Delhi", False)):
        ids = template.render([{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}])
        assert asked.by({"input_ids": [*ids, 30, 31], "loss_mask": [0] * len(ids) + [1, 1]}) is found


def test_an_import_of_which_every_row_is_evaluated_is_refused(answered: Path, tmp_path: Path) -> None:
    # Fewer different prompts than rows: both preparations of the same question count.
    rendered = Template(TARGET).render([{"role": "user", "content": question(0)}])
    ids = [[*rendered, 100 + number, *range(200, 208)] for number in range(COUNT)]
    masks = [[0] * len(rendered) + [1] * 9 for _ in range(COUNT)]
    data = speculators(tmp_path / "data", input_ids=ids, loss_mask=masks)
    file = prompts_file(tmp_path)
    text = refused(tmp_path / "w", str(data), *SMALL, "--set", f"data.prompts={file}", "--set", "data.heldout_prompts=15")
    assert "All 16 samples begin with a prompt that the draft is to be evaluated on" in text


def test_too_few_prompts_for_the_evaluation_are_refused_with_their_number(made_elsewhere: Path, tmp_path: Path) -> None:
    file = prompts_file(tmp_path, count=3)
    text = refused(tmp_path / "workspace", str(made_elsewhere), *SMALL, "--set", f"data.prompts={file}")
    assert "evaluate.prompts asks for 4 prompts, and data.prompts and data.heldout_prompts give 3" in text


def test_answers_of_repeated_tokens_are_refused_as_a_run_refuses_its_own(answered: Path, tmp_path: Path) -> None:
    ids, masks = conversations()
    for number in (3, 8):
        ids[number] = [token if bit == 0 else 30 for token, bit in zip(ids[number], masks[number], strict=True)]
    data = speculators(tmp_path / "data", input_ids=ids, loss_mask=masks)
    text = refused(tmp_path / "workspace", str(data), *SMALL)
    assert "2 of 16 answers are runs of repeated tokens" in text and "--set guards.repeated=warn" in text
    found = imported(tmp_path, str(data), "--id", "new", *SMALL, "--set", "guards.repeated=warn")
    assert "14 samples with their states; 2 are runs of repeated tokens and are left out" in found.stdout, found.output
    run_dir = tmp_path / "runs" / "new"
    assert not {3, 8} & {row["index"] for row in read_rows(run_dir / "data" / "samples.jsonl")}
    assert [row["guard"]["name"] for row in rows(run_dir, "events.jsonl") if row.get("guard")] == ["repeated-tokens"]


def test_samples_that_teach_nothing_are_told_as_a_run_tells_its_own(answered: Path, tmp_path: Path) -> None:
    ids, masks = conversations()
    masks[:5] = [[0] * len(mask) for mask in masks[:5]]
    data = speculators(tmp_path / "data", input_ids=ids, loss_mask=masks)
    found = imported(tmp_path, str(data), "--id", "new", *SMALL)
    assert "11 samples with their states; 5 have nothing to learn from" in found.stdout, found.output
    events = rows(tmp_path / "runs" / "new", "events.jsonl")
    (told,) = (row["text"] for row in events if row["kind"] == "guard-zero-mask")
    assert "5 of 16 samples have no token that the loss sees." in told
    assert "--set guards.blind=warn" in refused(tmp_path / "w", str(data), *SMALL, "--set", "guards.blind=stop")


def test_room_is_asked_for_states_that_are_written_anew_and_for_the_rest_of_the_run(made_elsewhere: Path, tmp_path: Path) -> None:
    # Of the whole disk: what is free now may be less than what is free when it is looked at.
    floor = f"disk_floor_bytes={shutil.disk_usage(tmp_path).total}"
    asked = (tmp_path / "w", str(made_elsewhere), *SMALL, "--set", floor)
    text = refused(*asked, "--set", "extract.storage=float8_e4m3", code=1)
    assert "of states, which are stored in another precision, and" in text and "for the rest of the run" in text
    text = refused(*asked, code=1)
    assert "of states" not in text.partition("for the rest")[0] and "for the rest of the run" in text


def test_only_states_that_no_link_reaches_count_as_copies(made_elsewhere: Path, tmp_path: Path) -> None:
    run_dir = made_elsewhere.parent / "linking"
    assert imported(run_dir, str(made_elsewhere), "--id", "new", *SMALL).exit_code == 0
    ctx = context(run_dir / "runs" / "new")
    store, near = extract.open_store(ctx), made_elsewhere / "hidden_states" / "hs_3.safetensors"
    elsewhere = Path("/proc/version")  # a file of another file system, on every machine
    files = [(near, 12), (elsewhere, 12), (elsewhere, 5)]
    assert room.copied_bytes(ctx.run_dir, store, files, converts=False) == store.bytes_of(17, 2)
    assert room.copied_bytes(ctx.run_dir, store, files, converts=True) == store.bytes_of(29, 3)
    assert not list(ctx.run_dir.glob(".link-*"))


def test_imported_data_that_has_changed_is_asked_back_and_not_made_anew(made_elsewhere: Path, tmp_path: Path) -> None:
    assert imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL).exit_code == 0
    ctx = context(tmp_path / "runs" / "new")
    samples = ctx.path("data", "samples.jsonl")
    before = samples.read_bytes()
    samples.write_bytes(before[:-2])
    with pytest.raises(StageError, match=r"regenerate was imported and cannot be made here .*samples\.jsonl is not what it left"):
        work.run_stage(ctx, "regenerate", regenerate)
    samples.write_bytes(before)
    work.run_stage(ctx, "regenerate", regenerate)
    assert ctx.figures["regenerate"]["prompts"] == COUNT
