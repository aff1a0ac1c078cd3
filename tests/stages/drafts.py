"""Drafts made in tests: a tiny folder that is only looked at, and a real one at random that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

TINY_CONFIG: dict[str, Any] = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 4,
    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
    "transformer_layer_config": {"model_type": "llama", "hidden_size": 8, "_name_or_path": "/home/someone/target"},
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "/home/someone/target", "architectures": ["LlamaForCausalLM"]},
    },
}


def tiny_draft(folder: Path, *, without: str = "", known: tuple[int, ...] = (0, 2, 5, 9), offset: int = 0) -> Path:
    """A folder with the files and the vocabulary map of a draft, but weights of nothing. ``without`` leaves out a tensor;
    ``offset`` shifts the map."""
    folder.mkdir(parents=True, exist_ok=True)
    t2d = np.zeros(12, dtype=np.bool_)
    t2d[list(known)] = True
    d2t = np.array(known, dtype=np.int64) - np.arange(len(known)) + offset
    tensors = {"d2t": d2t, "t2d": t2d, "fc.weight": np.ones((8, 24), dtype=np.float32)}
    save_file({name: tensor for name, tensor in tensors.items() if name != without}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return folder


def random_draft(folder: Path, target: Path, auxiliary_layers: list[int], draft_vocab_size: int = 2048) -> Path:
    """A draft of the real shape for ``target``, at random: it loads, runs, and proposes next to nothing right."""
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import AutoConfig

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
    t2d[:draft_vocab_size] = True
    model = Eagle3DraftModel.from_training_args(
        config,
        t2d=t2d,
        d2t=torch.zeros(draft_vocab_size, dtype=torch.long),
        draft_vocab_size=draft_vocab_size,
        norm_before_residual=True,
        ttt_steps=3,
        target_layer_ids=auxiliary_layers,
        verifier_name_or_path=str(target),
        draft_attn_impl="eager",
    )
    model.save_pretrained(folder)
    return folder
