"""Hidden states by transformers' forward hooks: the same files as from a server, for targets small enough to load here.

The reference that the server's states are held against, and a way to states where no vLLM is installed. Layer id k is the
input of decoder layer k, which is the output of layer k-1, so the hook for it sits on layer k-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eagle3.stages.context import StageError


class TransformersEngine:
    """A target loaded once, giving states [tokens, layers, hidden] of one token list at a time."""

    def __init__(
        self,
        model_dir: Path,
        layers: Sequence[int],
        *,
        dtype: torch.dtype | str = torch.float32,
        device: str = "cpu",
        trust_remote_code: bool = False,
    ) -> None:
        """``dtype``: a torch dtype, its name, or "auto" for the model's own. Raises StageError when the model cannot be
        loaded or lacks a layer."""
        from transformers import AutoModel

        self._model: Any = load(AutoModel, model_dir, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        self._device = device
        self._layers = list(layers)
        blocks = _decoder_layers(self._model)
        if max(layers) > len(blocks) or min(layers) < 1:
            raise StageError(f"{model_dir} has {len(blocks)} layers; the layer ids {list(layers)} do not all exist.")
        self._caught: dict[int, torch.Tensor] = {}
        for layer in layers:
            blocks[layer - 1].register_forward_hook(self._catcher(layer))

    def states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """The hidden states [tokens, layers, hidden] of one sequence, on the CPU, in the dtype it was loaded in."""
        ids = torch.tensor([list(token_ids)], dtype=torch.long, device=self._device)
        with torch.inference_mode():
            self._model(input_ids=ids, use_cache=False)
        stacked = torch.stack([self._caught[layer] for layer in self._layers], dim=1)
        self._caught.clear()
        return stacked.to("cpu")

    def _catcher(self, layer: int) -> Callable[[Any, Any, Any], None]:
        def catch(module: Any, inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            self._caught[layer] = hidden[0]

        return catch


def load(kind: Any, model_dir: Path, *, dtype: torch.dtype | str, device: str, trust_remote_code: bool = False) -> Any:
    """A model by one of transformers' auto classes, on ``device``, for inference. Raises StageError when it cannot be."""
    try:
        found = kind.from_pretrained(str(model_dir), dtype=dtype, local_files_only=True, trust_remote_code=trust_remote_code)
        return found.to(device).eval()
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise StageError(f"transformers cannot load {model_dir} ({(str(error).splitlines() or ['no reason'])[0]}).") from error


def _decoder_layers(model: Any) -> Any:
    """The list of decoder layers: of a text model, or of the text part of a model for several media."""
    for path in (("layers",), ("model", "layers"), ("language_model", "layers"), ("model", "language_model", "layers")):
        found = model
        for name in path:
            found = getattr(found, name, None)
        if found is not None:
            return found
    raise StageError(
        f"The decoder layers of {type(model).__name__} are not where they are looked for; extract with a vLLM server."
    )
