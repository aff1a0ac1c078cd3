"""Tensors of a draft whose parts lie on several ranks (FSDP), seen as the whole ones that files hold.

Every rank must come along: putting the parts together is a collective. A tensor that is whole already stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(value: Any) -> Any:
    """``value`` with every sharded tensor in it (also in lists and dicts) put together."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {name: whole(part) for name, part in value.items()}
    if isinstance(value, list):
        return [whole(part) for part in value]
    return value


def shared_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``value`` laid out over the ranks as ``like`` is."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    laid_out: torch.Tensor = distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return laid_out


def optimizer_state(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A saved state of ``optimizer`` with what belongs to a sharded parameter laid out as that parameter is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {
            name: shared_out(part, parameters[number]) if isinstance(part, torch.Tensor) and part.dim() else part
            for name, part in parts.items()
        }
        for number, parts in saved["state"].items()
    }
    return saved | {"state": state}
