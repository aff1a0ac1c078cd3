"""From a regenerated conversation to a training sample: token ids, and a mask that says which of them the target wrote.

The ids are the server's own, never those of the answer's text tokenised again: a draft learns from what the target
really emitted, and an answer that was cut off at its length limit gets no end-of-turn token that the target never wrote.
The prompts' ids are compared with those of the target's chat template, so that a server with another template is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.stages.context import StageError

Message = dict[str, str]
Render = Callable[[Sequence[Message]], list[int]]
"""Token ids of the messages so far, followed by the template's invitation to the assistant."""

_REPEAT_MIN_TOKENS = 8


class TemplateError(StageError):
    """The chat template, the tokenizer and the server do not agree on a conversation's tokens."""


@dataclass(frozen=True)
class Turn:
    """One answer: the ids it was asked with, the ids that came, and why it ended ("stop" or "length")."""

    prompt_ids: list[int]
    answer_ids: list[int]
    finish: str

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    input_ids: list[int]
    loss_mask: list[int]
    prompt_tokens: int


def make_sample(
    messages: Sequence[Message], turns: Sequence[Turn], render: Render, end_ids: frozenset[int], limit: int
) -> Sample:
    """The sample of a conversation, at most ``limit`` tokens long.

    The mask is 1 for exactly the tokens that the assistant wrote, its end-of-turn token among them when it wrote one.
    Raises TemplateError when the server's prompt is not what the template gives, or when the tokens of an earlier turn
    are not the beginning of those of a later one (a template that rewrites history).
    """
    asked = [number for number, message in enumerate(messages) if message["role"] == "user"]
    for number, turn in zip(asked, turns, strict=True):
        expected = render(messages[: number + 1])
        if expected != turn.prompt_ids:
            at = _first_difference(expected, turn.prompt_ids)
            raise TemplateError(
                f"The server's prompt differs from the chat template of the target's folder at token {at}; "
                "remove --chat-template from server.args, or make both use the same model folder."
            )
    whole = turns[-1].prompt_ids + turns[-1].answer_ids
    mask = [0] * len(whole)
    for turn, later in zip(turns, [*turns[1:], None], strict=True):
        start = len(turn.prompt_ids)
        if later is not None and later.prompt_ids[:start] != turn.prompt_ids:
            at = _first_difference(turn.prompt_ids, later.prompt_ids)
            raise TemplateError(
                f"The target's chat template rewrites earlier turns (token {at} changes when a turn is added), so their answers "
                "cannot be located; use prompts of one turn with this target."
            )
        end = start + len(turn.answer_ids)
        if whole[start:end] != turn.answer_ids:
            # The text came back as other tokens in the next prompt: what lies there is what the target was shown.
            end = _end_of_turn(whole, start, end_ids) + (turn.finish == "stop")
        mask[start:end] = [1] * (end - start)
    return Sample(whole[:limit], mask[:limit], len(turns[0].prompt_ids))


def repeated_share(ids: Sequence[int]) -> float:
    """Share of tokens that equal the one before: near 0 in running text, near 1 in a run of one token, 0.5 when every
    token comes twice. Answers too short to judge give 0."""
    if len(ids) < _REPEAT_MIN_TOKENS:
        return 0.0
    return sum(a == b for a, b in itertools.pairwise(ids)) / (len(ids) - 1)


class Template:
    """The target's own chat template and tokenizer, from its folder."""

    def __init__(self, model_dir: Path, *, trust_remote_code: bool = False) -> None:
        """Raises StageError when the tokenizer cannot be loaded or has no chat template."""
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(model_dir), local_files_only=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise StageError(
                f"The tokenizer in {model_dir} cannot be loaded ({str(error).splitlines()[0]}); copy the model's folder "
                "again, whole, and set target.trust_remote_code if it brings its own code."
            ) from error
        if not self._tokenizer.chat_template:
            raise StageError(f"The tokenizer in {model_dir} has no chat template; use a chat model, or add chat_template.jinja.")
        self._model_dir = model_dir

    def render(self, messages: Sequence[Message], *, invite: bool = True) -> list[int]:
        """Token ids of a conversation with the invitation to the assistant (or without), as a chat server tokenises it."""
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=invite)
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without the tokens that only mark its end."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer: the tokenizer's and those of generation_config.json."""
        from eagle3.runner import rundir

        configured = rundir.read_json(self._model_dir / "generation_config.json", {}).get("eos_token_id")
        listed = configured if isinstance(configured, list) else [configured]
        return frozenset(int(token) for token in (*listed, self._tokenizer.eos_token_id) if token is not None)


def _end_of_turn(ids: Sequence[int], start: int, end_ids: frozenset[int]) -> int:
    for position in range(start, len(ids)):
        if ids[position] in end_ids:
            return position
    raise TemplateError(
        "The target's chat template puts no end-of-turn token behind an answer; use prompts of one turn with this target."
    )


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    same = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        same += 1
    return same
