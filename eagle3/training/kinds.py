"""The kinds of draft that speculators trains on the same hidden states, and what differs between them here.

Only EAGLE-3 is certified: built, trained, scored and served in this project's own tests. The others are experimental. They
train, are saved and resumed, but their figures are thinner: speculators counts for them how often each position is right by
itself, not how many in a row, so ``acc_pos`` holds the first position alone and ``accept_len`` is 1 plus that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_POSITION = re.compile(r"position_(\d+)_acc_total")


@dataclass(frozen=True)
class Kind:
    """One kind. ``layers`` and ``arch``: what its decoder is made of, as speculators sets it by default for the kind;
    ``shifted``: whether inputs and states are aligned as EAGLE-3's; ``draws``: whether a training step draws at random;
    ``options``: arguments of its own, for the model and for each training step."""

    name: str
    arch: str = "llama"
    layers: int = 1
    shifted: bool = True
    draws: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        """Whether this project vouches for it."""
        return self.name == "eagle3"

    def step_figures(self, counts: Mapping[str, float]) -> tuple[float, list[float], list[float], float]:
        """Loss, its parts by position, joint accuracy by position and simulated acceptance length, from the sums and totals that
        speculators' loss counts over any number of packs."""

        def share(name: str) -> float:
            total = counts[f"{name}_total"]
            return counts[f"{name}_sum"] / total if total else 0.0

        if self.certified:
            positions = range(sum(1 for name in counts if name.startswith("full_acc_") and name.endswith("_total")))
            acc_pos = [share(f"full_acc_{k}") for k in positions]
            return share("loss"), [share(f"loss_{k}") for k in positions], acc_pos, 1.0 + sum(acc_pos)
        first = min(int(found[1]) for name in counts if (found := _POSITION.fullmatch(name)))
        right = share(f"position_{first}_acc")
        return share("loss"), [], [right], 1.0 + right


_BLOCKS = {"block_size": 8, "max_anchors": 64}
"""DFlash and DSpark draft blocks of eight tokens from anchors of a pack; speculators' 512 and 3,072 anchors are for packs of
many thousand tokens, and each costs a block."""

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("eagle3", draws=False),
        Kind("peagle", arch="qwen3", options={"num_depths": 4}),
        Kind("dflash", arch="qwen3", layers=5, shifted=False, options=_BLOCKS),
        Kind("dspark", arch="qwen3", layers=5, shifted=False, options=_BLOCKS | {"confidence_head_alpha": 1.0}),
    )
}
