"""A chat template of one token a character, and the answers of a target that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.stages.fake_vllm import Reply

END = 1


class ToyTemplate:
    """One token a character, a 0 in front of each message."""

    @staticmethod
    def render(messages: Any) -> list[int]:
        return [token for message in messages for token in (0, *map(ord, message["content"]), END)] + [0]

    @staticmethod
    def end_ids() -> frozenset[int]:
        return frozenset({END})


TOY: Any = ToyTemplate()


def answer(body: Mapping[str, Any], said: str = "fine, thanks") -> Reply:
    choice = {"message": {"content": said}, "token_ids": [*map(ord, said), END], "finish_reason": "stop"}
    found = {"prompt_token_ids": ToyTemplate.render(body["messages"]), "choices": [choice]}
    return Reply(body=json.dumps(found).encode())
