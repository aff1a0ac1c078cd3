"""What the canary's hidden states are, as plain numbers. Nothing is judged here; ``core.readiness`` does that.

States are ``[tokens, layers, hidden]``, in the order of the layer ids that were asked for, the target's last one at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_NORM = re.compile(r"(?:^|\.)(?:model|language_model|transformer|backbone)\.(?:norm|final_layernorm|ln_f|norm_f)\.weight$")
_HEAD = re.compile(r"(?:^|\.)lm_head\.weight$")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings)\.weight$")
_OWN_NORM = ("gemma",)
"""Model types whose norm multiplies by 1 + weight."""


def states_facts(tensors: Mapping[str, torch.Tensor], asked: Sequence[int]) -> dict[str, Any]:
    """Facts of one request's file, for the token ids ``asked``."""
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None or states.dim() != 3:
        shape = None if states is None else list(states.shape)
        return {"asked": len(asked), "shape": shape, "lacks": sorted({"hidden_states", "token_ids"} - tensors.keys())}
    values = states.float()
    finite = torch.isfinite(values)
    layers = states.shape[1]
    spread = [float(values[:, layer].std()) for layer in range(layers)]
    return {
        "asked": len(asked),
        "shape": list(states.shape),
        "dtype": str(states.dtype).removeprefix("torch."),
        "ids_equal": ids.tolist() == list(asked),
        "not_finite": int((~finite).sum()),
        "spread": [_number(value) for value in spread],
        "zero_rows": [int((values[:, layer] == 0).all(dim=1).sum()) for layer in range(layers)],
        "equal_neighbours": [layer for layer in range(1, layers) if torch.equal(values[:, layer], values[:, layer - 1])],
    }


def agreement(alone: torch.Tensor, together: torch.Tensor) -> dict[str, Any]:
    """How far the states of one request are from those of the same request among others: per layer the largest difference
    over the layer's largest value, and the smallest cosine of a token."""
    if alone.shape != together.shape:
        return {"shapes": [list(alone.shape), list(together.shape)], "relative": [], "cosine": []}
    a, b = alone.double(), together.double()
    relative, cosine = [], []
    for layer in range(a.shape[1]):
        x, y = a[:, layer], b[:, layer]
        relative.append(float((x - y).abs().max() / x.abs().max().clamp_min(1e-30)))
        cosine.append(float(torch.nn.functional.cosine_similarity(x, y, dim=1).min()))
    return {"relative": [_number(v) for v in relative], "cosine": [_number(v) for v in cosine]}


class Head:
    """The target's last norm and output matrix: three tensors of its folder, in float32."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError, in words, where they are not where they are looked for."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        if any(str(text.get("model_type", "")).startswith(kind) for kind in _OWN_NORM):
            raise ValueError(f"{text.get('model_type')} has a norm of its own kind")
        names = _tensors(folder)
        norm = next((name for name in sorted(names) if _NORM.search(name)), None)
        head = next((name for name in sorted(names) if _HEAD.search(name)), None)
        head = head or next((name for name in sorted(names) if _EMBEDDING.search(name)), None)
        if norm is None or head is None:
            raise ValueError("its last norm or its output matrix has no name that is known here")
        self._norm = _load(names[norm], norm)
        self._head = _load(names[head], head)
        self._epsilon = float(text.get("rms_norm_eps") or text.get("layer_norm_epsilon") or 1e-6)
        if self._norm.shape[0] != self._head.shape[1]:
            raise ValueError(f"its norm has {self._norm.shape[0]} values and its output matrix {self._head.shape[1]}")

    def ranks(self, last: torch.Tensor, token: int) -> dict[str, Any]:
        """Where the server's next ``token`` stands among the logits of the last layer's state ``last`` [hidden]: rank 0 is
        the argmax; ``gap`` is the distance in logits to the best."""
        hidden = last.float()
        normed = hidden * torch.rsqrt(hidden.pow(2).mean() + self._epsilon) * self._norm
        logits = self._head @ normed
        rank = int((logits > logits[token]).sum())
        return {"token": token, "argmax": int(logits.argmax()), "rank": rank, "gap": _number(float(logits.max() - logits[token]))}


def _tensors(folder: Path) -> dict[str, Path]:
    from safetensors import safe_open

    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as shard:
            found |= {str(name): file for name in shard.keys()}  # noqa: SIM118 - it is no dict
    return found


def _load(file: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as shard:
        tensor: torch.Tensor = shard.get_tensor(name)
    if not tensor.is_floating_point():
        raise ValueError(f"{name} is stored as {tensor.dtype}, not as plain numbers")
    return tensor.float()


def _number(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None
