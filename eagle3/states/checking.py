"""The one look at the states of a sample, as they land: are these the states of exactly these tokens?

Each test stands for a failure that somebody has met: states of a batch mixed up, layers lost or swapped for a copy, NaN or zero
states on which a training went on quietly for hours.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class StateError(ValueError):
    """A state file is not what was asked for; the message says what is wrong with it."""


class Misfit(StateError):
    """States of another shape or precision than the spec's target has: those of every sample will be."""


class MixedUp(StateError):
    """Two samples of different tokens have the same states at their last token; ``other`` is the one that came first. Which of
    the two is wrong cannot be told, so both are asked for again."""

    def __init__(self, other: int) -> None:
        super().__init__(f"its last token's states are those of sample {other}: the server has mixed up two requests")
        self.other = other


def read_states(file: Path, most_bytes: int, *, links: bool = False) -> bytes:
    """The bytes of a state file that others have written. Raises StateError where it cannot be read, is no file (a pipe would be
    waited at for ever), is a link where ``links`` is false, or is larger than these states can be (it would fill the memory)."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise StateError(f"{file.name} is no file")
            if about.st_size > most_bytes:
                raise StateError(f"{file.name} has {about.st_size:,} bytes, and these states are never beyond {most_bytes:,}")
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                return stream.read(most_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"the file {file.name} cannot be read ({error.strerror})") from error


def parse(content: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a state file. Raises StateError where it is no whole safetensors file or lacks one."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Any] = load(content)
    except (SafetensorError, KeyError) as error:  # KeyError: a number format that this torch has not
        raise StateError(f"not a whole safetensors file ({error})") from error
    if lacking := {"hidden_states", "token_ids"} - tensors.keys():
        raise StateError(f"it lacks {' and '.join(sorted(lacking))}")
    return tensors


def check(
    tensors: dict[str, torch.Tensor], token_ids: Sequence[int], *, layers: int, hidden_size: int, dtype: str = "auto"
) -> None:
    """Raise StateError unless these are the states of exactly these tokens: one row a token, ``layers`` layers of
    ``hidden_size`` values, of ``dtype`` ("auto": any floating point), all finite, and no layer constant, the same at every
    token, all zero at a token or the copy of another."""
    import torch

    states, ids = tensors["hidden_states"], tensors["token_ids"]
    if ids.tolist() != list(token_ids):
        raise StateError(f"its {ids.numel()} token ids are not the {len(token_ids)} asked for")
    expected = (len(token_ids), layers, hidden_size)
    if tuple(states.shape) != expected:
        raise Misfit(f"its states have the shape {list(states.shape)}, not {list(expected)} (tokens, layers, hidden)")
    found = str(states.dtype).removeprefix("torch.")
    if not states.is_floating_point():
        raise Misfit(f"its states are {found}, not floating point")
    if dtype != "auto" and found != dtype:
        raise Misfit(f"its states are {found}, and the target runs in {dtype}")
    # One pass over the states, and everything below from its two small tables [tokens, layers]: a pass for each test took 8.8 ms
    # of the processor that a server beside it computes on, this one 0.3 ms (300 tokens of SmolLM2, float32). NaN comes through.
    low, high = states.amin(-1), states.amax(-1)
    if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
        raise StateError("some of its states are NaN or infinite")
    several = len(set(token_ids)) > 1
    for layer in range(layers):
        least, most = low[:, layer], high[:, layer]
        if bool(least.min() == most.max()):
            raise StateError(f"its layer {layer} of {layers} is constant")
        if bool(((least == 0) & (most == 0)).any()):
            raise StateError(f"its layer {layer} of {layers} is all zero at a token")
        if several and bool(((least == least[0]) & (most == most[0])).all()) and _one_row(states[:, layer]):
            raise StateError(f"its layer {layer} of {layers} is the same at every token")
        if layer and torch.equal(least, low[:, layer - 1]) and torch.equal(states[:, layer], states[:, layer - 1]):
            raise StateError(f"its layers {layer - 1} and {layer} are the same")


def _one_row(values: torch.Tensor) -> bool:
    return bool((values == values[0]).all())


def mark(states: torch.Tensor) -> str:
    """16 hex digits of the states of the last token. Those depend on every token before it, so two samples of different
    tokens that share them have been mixed up by the server."""
    import torch

    last = states[-1].contiguous().view(torch.uint8)
    return hashlib.sha256(last.numpy().tobytes()).hexdigest()[:16]
