"""How hidden states are stored: as the target computes them, in bfloat16, or in 8 bits with a scale.

``float8_e4m3`` divides each layer of a sample by its largest magnitude over 448 (the largest e4m3 number) and keeps that scale
in the tensor ``scale`` [layers]. Reading back a value x is off by at most ``FLOAT8_RELATIVE`` of |x|, or ``FLOAT8_OF_LARGEST``
of the layer's largest magnitude where that is more. bfloat16: ``BFLOAT16_RELATIVE`` of |x|.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3.states.checking import StateError

if TYPE_CHECKING:
    import torch

FLOAT8_LARGEST = 448.0
"""The largest finite number of e4m3 (sign, 4 exponent bits, 3 mantissa bits, no infinity)."""
FLOAT8_RELATIVE = 2.0**-4
"""Half a unit in the last of 3 mantissa bits."""
FLOAT8_OF_LARGEST = 2.0**-10 / FLOAT8_LARGEST
"""Half the smallest subnormal, 2^-9, over the number that the largest magnitude becomes: 2.2e-6."""
BFLOAT16_RELATIVE = 2.0**-8
"""Half a unit in the last of 7 mantissa bits."""


def pack(tensors: dict[str, torch.Tensor], storage: str) -> dict[str, torch.Tensor]:
    """The tensors as they are stored under ``extract.storage``."""
    import torch

    if storage == "target":
        return tensors
    states = tensors["hidden_states"]
    if storage == "bfloat16":
        return tensors | {"hidden_states": states.to(torch.bfloat16).contiguous()}
    exact = states.to(torch.float32)
    scale = exact.abs().amax(dim=(0, 2)) / FLOAT8_LARGEST
    # Division may round beyond the largest number, which e4m3 would turn into NaN.
    small = (exact / scale[None, :, None]).clamp(-FLOAT8_LARGEST, FLOAT8_LARGEST)
    return tensors | {"hidden_states": small.to(torch.float8_e4m3fn).contiguous(), "scale": scale.contiguous()}


def unpack(tensors: dict[str, torch.Tensor], dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """The tensors as they are used, ``hidden_states`` in ``dtype``; None keeps what is stored, or float32 for 8 bits.
    Raises StateError where 8-bit states lack their scale."""
    import torch

    states = tensors["hidden_states"]
    if states.dtype != torch.float8_e4m3fn:
        return tensors if dtype is None else tensors | {"hidden_states": states.to(dtype)}
    scale = tensors.get("scale")
    if scale is None or scale.shape != states.shape[1:2]:
        raise StateError("its 8-bit states have no scale for each layer")
    exact = states.to(torch.float32) * scale[None, :, None]
    rest = {name: tensor for name, tensor in tensors.items() if name != "scale"}
    return rest | {"hidden_states": exact if dtype is None else exact.to(dtype)}
