"""Samples on the real target's tokenizer: which tokens count, and which disagreements are found."""

from __future__ import annotations

import pytest

from eagle3.stages.context import StageError
from eagle3.stages.samples import Message, Sample, Template, TemplateError, Turn, make_sample, repeated_share
from tests.stages.runs import TARGET

END = 2
LIMIT = 1023


@pytest.fixture(scope="module")
def template() -> Template:
    return Template(TARGET)


def ids_of(template: Template, text: str) -> list[int]:
    return [int(token) for token in template._tokenizer(text, add_special_tokens=False)["input_ids"]]


def text_of(template: Template, ids: list[int]) -> str:
    return str(template._tokenizer.decode(ids))


def supervised(template: Template, sample: Sample) -> str:
    return text_of(template, [token for token, on in zip(sample.input_ids, sample.loss_mask, strict=True) if on])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def sample_of(template: Template, messages: list[Message], turns: list[Turn], limit: int = LIMIT) -> Sample:
    return make_sample(messages, turns, template.render, template.end_ids(), limit)


def test_the_mask_covers_the_answer_and_its_end_and_nothing_else(template: Template) -> None:
    question = [user("What is the capital of France?")]
    turn = Turn(template.render(question), [*ids_of(template, "It is Paris."), END], "stop")
    sample = sample_of(template, [*question, assistant("It is Paris.")], [turn])
    assert supervised(template, sample) == "It is Paris.<|im_end|>"
    assert sample.prompt_tokens == len(turn.prompt_ids) == sample.loss_mask.index(1)
    assert text_of(template, sample.input_ids).endswith("<|im_start|>assistant\nIt is Paris.<|im_end|>")


def test_an_answer_cut_off_at_its_limit_gets_no_end_that_the_target_never_wrote(template: Template) -> None:
    question = [user("Count.")]
    turn = Turn(template.render(question), ids_of(template, "One, two, three"), "length")
    sample = sample_of(template, [*question, assistant("One, two, three")], [turn])
    assert supervised(template, sample) == "One, two, three"
    assert sample.input_ids[-1] != END


def two_turns(template: Template, first_ids: list[int], finish: str) -> tuple[list[Message], list[Turn]]:
    messages = [user("Name a colour."), assistant("Blue is one."), user("Another?"), assistant("Red.")]
    turns = [
        Turn(template.render(messages[:1]), first_ids, finish),
        Turn(template.render(messages[:3]), [*ids_of(template, "Red."), END], "stop"),
    ]
    return messages, turns


def test_both_answers_of_a_chat_count(template: Template) -> None:
    messages, turns = two_turns(template, [*ids_of(template, "Blue is one."), END], "stop")
    assert supervised(template, sample_of(template, messages, turns)) == "Blue is one.<|im_end|>Red.<|im_end|>"


def test_a_first_answer_cut_off_counts_without_the_end_that_the_template_put_there(template: Template) -> None:
    messages, turns = two_turns(template, ids_of(template, "Blue is one."), "length")
    assert supervised(template, sample_of(template, messages, turns)) == "Blue is one.Red.<|im_end|>"


@pytest.mark.parametrize(("finish", "end"), [("stop", "<|im_end|>"), ("length", "")])
def test_a_first_answer_that_comes_back_as_other_tokens_is_found_by_its_end(template: Template, finish: str, end: str) -> None:
    letters = [token for letter in "Blue is one." for token in ids_of(template, letter)]
    messages, turns = two_turns(template, [*letters, END] if finish == "stop" else letters, finish)
    assert supervised(template, sample_of(template, messages, turns)) == f"Blue is one.{end}Red.<|im_end|>"


def test_a_server_with_another_template_is_found(template: Template) -> None:
    question = [user("Hello?")]
    turn = Turn([1, *template.render(question)], ids_of(template, "Yes."), "stop")
    with pytest.raises(TemplateError, match="differs from the chat template of the target's folder at token 1"):
        sample_of(template, [*question, assistant("Yes.")], [turn])


def test_a_template_that_rewrites_earlier_turns_is_an_error_that_says_so() -> None:
    def rewriting(messages: list[Message]) -> list[int]:
        return [len(messages), *(len(message["content"]) for message in messages)]

    messages = [user("aa"), assistant("b"), user("ccc"), assistant("d")]
    turns = [Turn(rewriting(messages[:1]), [7, END], "stop"), Turn(rewriting(messages[:3]), [8, END], "stop")]
    with pytest.raises(TemplateError, match="rewrites earlier turns"):
        make_sample(messages, turns, rewriting, frozenset({END}), LIMIT)  # type: ignore[arg-type]


def test_a_sample_never_exceeds_what_extraction_can_ask_for(template: Template) -> None:
    question = [user("Go on.")]
    turn = Turn(template.render(question), [500] * 100, "length")
    sample = sample_of(template, [*question, assistant("")], [turn], limit=60)
    assert len(sample.input_ids) == len(sample.loss_mask) == 60


def test_the_ends_of_an_answer_come_from_the_tokenizer_and_the_generation_config(template: Template) -> None:
    assert template.end_ids() == {END}


def test_the_render_is_what_a_chat_server_makes_of_the_messages(template: Template) -> None:
    assert text_of(template, template.render([user("Hi")])).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_folder_without_a_tokenizer_is_an_error_that_names_it(tmp_path: object) -> None:
    with pytest.raises(StageError, match="cannot be loaded"):
        Template(TARGET.parent / "no such model")


@pytest.mark.parametrize(
    ("ids", "share"), [([5] * 20, 1.0), ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6], 0.5), (list(range(20)), 0.0), ([5, 5, 5], 0.0)]
)
def test_runs_and_doublings_of_tokens_are_measured(ids: list[int], share: float) -> None:
    assert repeated_share(ids) == pytest.approx(share)
