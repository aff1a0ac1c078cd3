"""The KL divergence of speculators' default loss, for machines without Triton, a few rows at a time.

Same value and gradient as ``speculators.losses.eager.kl_div_loss``. That one passes over whole ``[tokens, vocabulary]``
matrices some ten times and is bound by memory; in chunks that stay in the cache it takes half the time, and the
gradient, which needs the same numbers, is made on the way.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK_NUMBERS = 1 << 20
"""Numbers of one chunk of one matrix: four megabytes in float32."""


def kl_div(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """KL(target || draft) of every position: logits ``[1, tokens, vocabulary]`` to ``[1, tokens]``, in float32."""
    divergence: torch.Tensor = _ChunkedKL.apply(logits, targets)
    return divergence


class _ChunkedKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = max(1, CHUNK_NUMBERS // logits.shape[-1])
        divergence = logits.new_empty(logits.shape[:-1], dtype=torch.float32)
        gradient = torch.empty_like(logits, dtype=torch.float32)
        for start in range(0, logits.shape[1], rows):
            chunk = slice(start, start + rows)
            draft = torch.log_softmax(logits[:, chunk], -1, dtype=torch.float32)
            target = torch.log_softmax(targets[:, chunk], -1, dtype=torch.float32)
            share = target.exp()
            divergence[:, chunk] = torch.linalg.vecdot(share, target.sub_(draft))
            torch.sub(draft.exp_(), share, out=gradient[:, chunk])
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return divergence

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[0].unsqueeze(-1)).to(ctx.dtype), None
