"""Where one rank's random numbers stand: what a checkpoint keeps of it, and how a resume goes on from there."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of all that this process draws from. Of GPUs that of ``device`` alone: the others are other ranks', and a resume
    may not have them."""
    numpy_state = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": numpy_state | {"state": {k: np.asarray(v).tolist() for k, v in numpy_state["state"].items()}},
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else [],
    }


def set_random_state(state: dict[str, Any], device: torch.device, of_rank: int) -> None:
    """Go on from ``state``, which rank ``of_rank`` has saved. Earlier versions saved all the GPUs that a rank saw, of which the
    one of its own number was its; a training that was saved without a GPU keeps the GPU's own start."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    saved = state["cuda"]
    if saved and device.type == "cuda":
        torch.cuda.set_rng_state(saved[of_rank if len(saved) > of_rank else 0], device)
