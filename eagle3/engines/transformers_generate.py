"""Answers by transformers: several prompts at once, each with its own limit, temperature and seed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3.engines.transformers_engine import load


@dataclass(frozen=True)
class Asked:
    """One answer to make. ``temperature`` 0 takes the likeliest token; else tokens are drawn by a generator of the ``seed``."""

    prompt_ids: list[int]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answered:
    """The tokens that came, the end token among them when the model wrote one; ``finish`` is "stop" then, else "length"."""

    token_ids: list[int]
    finish: str


class Generator:
    """A target loaded once, answering batches of prompts."""

    def __init__(
        self,
        model_dir: Path,
        *,
        end_ids: frozenset[int],
        dtype: torch.dtype | str = torch.float32,
        device: str = "cpu",
        trust_remote_code: bool = False,
    ) -> None:
        """``end_ids``: the tokens that end an answer. Raises StageError when the model cannot be loaded."""
        from transformers import AutoModelForCausalLM

        self._model: Any = load(AutoModelForCausalLM, model_dir, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        self._device = device
        self._end_ids = end_ids
        # Else a prompt's every position gets its 4 bytes for each token of the vocabulary.
        takes = inspect.signature(self._model.forward).parameters
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @torch.inference_mode()
    def answer(self, asked: Sequence[Asked]) -> list[Answered]:
        """The answers, in order. The prompts are padded on the left, and the padding is masked."""
        longest = max(len(one.prompt_ids) for one in asked)
        padding = [longest - len(one.prompt_ids) for one in asked]
        ids = torch.tensor([[0] * pad + one.prompt_ids for pad, one in zip(padding, asked, strict=True)], device=self._device)
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=self._device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        drawing = [torch.Generator().manual_seed(one.seed) for one in asked]
        said: list[list[int]] = [[] for _ in asked]
        ended = [False] * len(asked)
        cache: Any = None
        while not all(ended):
            found = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **self._last_only,
            )
            cache = found.past_key_values
            logits = found.logits[:, -1].float().cpu()
            tokens = [_pick(logits[row], one, drawing[row]) for row, one in enumerate(asked)]
            for row, (one, token) in enumerate(zip(asked, tokens, strict=True)):
                if not ended[row]:
                    said[row].append(token)
                    ended[row] = token in self._end_ids or len(said[row]) >= one.max_new_tokens
            ids = torch.tensor([[token] for token in tokens], device=self._device)
            mask = torch.cat([mask, mask.new_ones(len(asked), 1)], dim=1)
            positions = positions[:, -1:] + 1
        return [Answered(tokens, "stop" if tokens[-1] in self._end_ids else "length") for tokens in said]


def _pick(logits: torch.Tensor, asked: Asked, drawing: torch.Generator) -> int:
    if not asked.temperature:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / asked.temperature, dim=-1), 1, generator=drawing))
