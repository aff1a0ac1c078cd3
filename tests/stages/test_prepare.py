"""Prompts are read, judged and split before anything costly starts."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.presets import resolve
from eagle3.rows import read_rows
from eagle3.stages import evaluate, extract, prepare, regenerate, train, vocabulary
from eagle3.stages.context import StageError
from eagle3.stages.prompts import Prompt, content_hash, parse, prompt_hash, read_builtin, read_file, user_file
from tests.stages.runs import context


def make(count: int, kinds: int = 3) -> list[Prompt]:
    return [Prompt(f"p-{i}", f"kind-{i % kinds}", (f"question number {i}",)) for i in range(count)]


def names(prompts: list[Prompt]) -> set[str]:
    return {prompt.id for prompt in prompts}


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def test_the_shipped_prompts_suffice_for_the_pilot_and_keep_kinds_even(tmp_path: Path) -> None:
    ctx = context(tmp_path, size="pilot")
    figures = prepare.run(ctx)
    rows = read_rows(tmp_path / "data" / "prompts.jsonl")
    assert (figures["train"], figures["heldout"]) == (64, 20)
    assert Counter(row["split"] for row in rows) == {"train": 64, "heldout": 20}
    assert max(figures["kinds"].values()) - min(figures["kinds"].values()) <= 1
    assert rows == sorted(rows, key=lambda row: (row["split"], row["hash"]))


def test_training_and_heldout_share_no_prompt() -> None:
    train, heldout = prepare.split(make(40), 20, 10, seed=0)
    assert len(train) == 20 and len(heldout) == 10
    assert not names(train) & names(heldout)


def test_a_kind_that_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    overrides = {"data__train_prompts": 240, "data__heldout_prompts": 20, "data__heldout_kinds": ["chat"]}
    prepare.run(context(tmp_path, size="pilot", **overrides))
    kinds = {side: {row["kind"] for row in read_rows(tmp_path / "data" / "prompts.jsonl") if row["split"] == side}
             for side in ("train", "heldout")}  # fmt: skip
    assert kinds == {"heldout": {"chat"}, "train": {"code", "explain", "extract", "reason", "write"}}


@pytest.mark.parametrize(
    ("kinds", "words"),
    [(["kind-1", "poetry"], "names 'poetry', and no prompt is of that kind"), (["kind-1"], "leaves 8 .* data.heldout_prompts")],
)
def test_held_out_kinds_that_do_not_suffice_are_told_by_their_field(kinds: list[str], words: str) -> None:
    with pytest.raises(StageError, match=words):
        prepare.split(make(24), 12, 9, 0, kinds)


def test_a_run_from_before_a_field_was_there_keeps_its_prompts() -> None:
    assert "heldout_kinds" not in prepare.spec_part(resolve("pilot", "smollm2-135m", "cpu"))["data"]


@given(st.permutations(make(24)), st.integers(0, 3))
def test_the_split_does_not_depend_on_the_order_of_the_file(shuffled: list[Prompt], seed: int) -> None:
    train, heldout = prepare.split(make(24), 12, 6, seed)
    assert [names(side) for side in prepare.split(shuffled, 12, 6, seed)] == [names(train), names(heldout)]


def test_more_training_prompts_move_none_out_of_the_heldout_side() -> None:
    few, many = prepare.split(make(40), 8, 6, seed=0), prepare.split(make(40), 30, 6, seed=0)
    assert names(few[1]) == names(many[1])
    assert names(few[0]) < names(many[0])


def test_another_seed_holds_out_others() -> None:
    assert names(prepare.split(make(60), 30, 10, 0)[1]) != names(prepare.split(make(60), 30, 10, 1)[1])


def test_a_scarce_kind_is_used_up_and_the_others_fill_in() -> None:
    prompts = [*make(30, kinds=1), Prompt("rare", "rare", ("a rare question",))]
    train, heldout = prepare.split(prompts, 20, 5, seed=0)
    assert len(train) + len(heldout) == 25 and "rare" in names(train) | names(heldout)


def test_too_few_prompts_are_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(StageError, match="20 training and 5 held-out prompts are asked for, and there are 24 different ones"):
        prepare.split(make(24), 20, 5, seed=0)


def test_a_prompt_that_differs_only_in_case_blanks_and_width_is_a_duplicate() -> None:
    assert prompt_hash("What is  the\ntime?") == prompt_hash("what is the time? ") == prompt_hash("Ｗhat is the time?")
    unique = prepare.without_duplicates(
        [Prompt("a", "k", ("Same?",)), Prompt("b", "k", ("SAME?",)), Prompt("c", "k", ("Other?",))]
    )
    assert [prompt.id for prompt in unique] == ["a", "c"]


def test_a_users_file_is_used_and_its_duplicates_are_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"".join(line(prompt=f"question {i}") for i in range(24)) + line(prompt="Question 3"))
    ctx = context(tmp_path / "run", data__prompts=str(file))
    assert prepare.run(ctx)["duplicates"] == 1
    assert "1 of 25 prompts repeat" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_changed_file_of_the_same_name_makes_the_stage_run_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(line(prompt="one"))
    spec = context(tmp_path / "run", data__prompts=str(file)).spec
    before = prepare.spec_part(spec)
    file.write_bytes(line(prompt="another"))
    assert prepare.spec_part(spec) != before


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Ho"},
                {"role": "user", "content": "And?"},
            ]
        },
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}, {"from": "human", "value": "And?"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "user", "content": "And?"}]},
        {"turns": ["Hi", "And?"]},
    ],
)
def test_every_usual_shape_of_a_row_gives_the_users_turns(row: dict[str, Any]) -> None:
    assert parse(line(**row), "x")[0].turns == ("Hi", "And?")


def test_a_system_message_is_kept_and_stands_in_the_row() -> None:
    row = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]}
    assert parse(line(**row), "x")[0].row("train")["system"] == "Be short."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "mine.jsonl holds no prompts"),
        (b"\n \n", "mine.jsonl holds no prompts"),
        (line(prompt="ok") + b"{oops\n", "mine.jsonl, line 2: not a JSON object"),
        (line(prompt="ok") + b'["a"]\n', "mine.jsonl, line 2: not a JSON object"),
        (line(prompt="ok") + '{"prompt": "café"}\n'.encode("latin-1"), "mine.jsonl, line 2: byte 16 is not UTF-8"),
        ('{"prompt": "x"}\n'.encode("utf-16"), "mine.jsonl is written in UTF-16"),
        (line(messages=[{"role": "assistant", "content": "Hi"}]), "mine.jsonl, line 1: no turn of a user"),
        (line(turns=["Hi", "  "]), "mine.jsonl, line 1: a user turn is empty"),
        (line(messages=[{"role": "wizard", "content": "Hi"}]), "mine.jsonl, line 1: the role 'wizard' is not known"),
        (line(messages=["Hi"]), "mine.jsonl, line 1: a message is not an object"),
        (line(turns=[1]), "mine.jsonl, line 1: a turn is not text"),
        (line(text="Hi"), "mine.jsonl, line 1: none of 'messages'"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_file_and_line(content: bytes, said: str) -> None:
    with pytest.raises(StageError) as caught:
        parse(content, "mine.jsonl")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_a_file_of_two_or_four_bytes_a_letter_is_told_with_or_without_its_mark(encoding: str) -> None:
    with pytest.raises(StageError, match=r"mine\.jsonl is written in UTF-16.*save it as UTF-8\.$"):
        parse(line(prompt="Hi?").decode().encode(encoding), "mine.jsonl")


def test_a_line_of_a_hundred_megabytes_is_told_by_its_size_before_it_is_read() -> None:
    with pytest.raises(StageError) as caught:
        parse(line(prompt="ok") + b'{"prompt": "' + b"x" * 100_000_000 + b'"}\n', "mine.jsonl")
    assert str(caught.value) == (
        "mine.jsonl, line 2: 95.4 MiB long, and no conversation may have more than 16.0 MiB; write one object on each line."
    )


def test_conversations_without_an_assistants_turn_are_answered_by_the_target() -> None:
    rows = [{"messages": [{"role": "user", "content": "Hi"}]}, {"conversations": [{"from": "human", "value": "Ho"}]}]
    assert [prompt.turns for prompt in parse(b"".join(line(**row) for row in rows), "x")] == [("Hi",), ("Ho",)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "conversations", "turns", "prompt", "role", "content", "id", "kind"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.lists(json_values, min_size=1, max_size=3))
def test_json_of_any_shape_gives_prompts_of_text_or_one_sentence_with_its_line(values: list[Any]) -> None:
    try:
        found = parse(b"".join(json.dumps(value).encode() + b"\n" for value in values), "mine.jsonl")
    except StageError as error:
        assert str(error).startswith("mine.jsonl, line ") and "\n" not in str(error) and str(error).endswith(".")
    else:
        assert len(found) == len(values) == len({prompt.id for prompt in found})
        assert all(turn.strip() for prompt in found for turn in prompt.turns)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_prompts_or_one_sentence(content: bytes) -> None:
    try:
        parse(content, "mine.jsonl")
    except StageError as error:
        assert str(error).startswith("mine.jsonl") and str(error).endswith(".")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    ctx = context(tmp_path, data__prompts=str(tmp_path / "none.jsonl"))
    with pytest.raises(StageError, match=r"none\.jsonl cannot be read"):
        prepare.run(ctx)


@pytest.mark.parametrize(("field", "real"), [("hidden_size", 576), ("num_hidden_layers", 30), ("vocab_size", 49152)])
def test_a_model_of_another_size_than_the_spec_says_is_refused_before_anything_starts(
    tmp_path: Path, field: str, real: int
) -> None:
    with pytest.raises(StageError, match=rf"{field} {real}, the spec says target\.{field} = {real + 1}; correct the target"):
        prepare.run(context(tmp_path, **{f"target__{field}": real + 1}))


def test_a_spec_that_does_not_know_the_vocabulary_takes_the_models(tmp_path: Path) -> None:
    assert prepare.run(context(tmp_path, target__vocab_size=0))["heldout"] == 8


def test_the_shipped_prompts_are_all_different() -> None:
    shipped = read_builtin()
    assert len(prepare.without_duplicates(shipped)) == len(shipped)


@pytest.mark.parametrize("stage", [prepare, regenerate, extract, vocabulary, train, evaluate])
def test_every_stage_that_reads_the_target_runs_again_when_its_folder_changes(tmp_path: Path, stage: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    ctx = context(tmp_path / "run", target__model=str(folder))
    before = stage.spec_part(ctx.spec)
    (folder / "config.json").write_text('{"vocab_size": 7}')
    assert stage.spec_part(ctx.spec) != before


def test_a_changed_prompts_file_makes_the_stage_run_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    ctx = context(tmp_path / "run", data__prompts=str(file))
    missing = prepare.spec_part(ctx.spec)
    file.write_bytes(line(prompt="One?"))
    first = prepare.spec_part(ctx.spec)
    file.write_bytes(line(prompt="Two?"))
    assert missing != first != prepare.spec_part(ctx.spec)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"messages": [{"role": ["user"], "content": "hi"}]}', r"line 1: the role \['user'\] is not known"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "line 1: a turn is not text"),
        (rb'{"prompt": "half \ud83d a character"}', r"line 1: an escape such as \\ud83d"),
        (b"[" * 100_000, "line 1: not a JSON object"),
        (b'{"prompt": "\x00"}', "line 1: byte 13 is NUL"),
    ],
    ids=["a role that is a list", "a part without text", "half a character", "too deep", "a NUL byte"],
)
def test_odd_rows_are_told_by_their_line_and_never_by_a_class_name(content: bytes, said: str) -> None:
    with pytest.raises(StageError, match=said):
        parse(content, "mine.jsonl")


def test_an_id_that_comes_twice_gets_a_number_and_no_two_are_alike() -> None:
    rows = [line(id=name, prompt=f"Question {number}?") for number, name in enumerate(["a", "a", "a-2", "a"])]
    assert [prompt.id for prompt in parse(b"".join(rows), "mine.jsonl")] == ["a", "a-3", "a-2", "a-4"]
    # Each numbered from where the last one ended: from one each time, these rows took three minutes, and 100,000 of them twenty.
    many = b"".join(line(id="same", prompt=f"Question {number}?") for number in range(40_000))
    assert parse(many, "mine.jsonl")[-1].id == "same-40000"


def test_windows_line_ends_a_byte_order_mark_and_blank_lines_are_no_trouble() -> None:
    content = b"\xef\xbb\xbf" + line(prompt="One?").rstrip() + b"\r\n\r\n  \r\n" + line(prompt="Two?").rstrip()
    assert [prompt.turns for prompt in parse(content, "mine.jsonl")] == [("One?",), ("Two?",)]


@pytest.mark.parametrize("kind", ["folder", "pipe", "relative", "nobody's home"])
def test_a_prompts_path_that_is_no_file_is_told_without_waiting_for_it(tmp_path: Path, kind: str) -> None:
    path = {"relative": Path("mine.jsonl"), "nobody's home": Path("~nobody-of-that-name/mine.jsonl")}.get(kind, tmp_path / "it")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(StageError, match=r"data\.prompts"):
        read_file(user_file(str(path)))
    assert content_hash(user_file(str(path))) is None
