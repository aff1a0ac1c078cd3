"""The ranks of one training: who leads, and how they decide as one.

Only rank 0 sees the operator's orders, the guards and the clock; what follows from them (save, hold, stop, score) is done
by all ranks or by none. So every decision is asked of rank 0 and given to the others, over a group of its own that uses
gloo: it works on any machine, and a long pause or save does not run into the limit of the gradients' own group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from speculators.train import distributed as topology

T = TypeVar("T")

LIMIT = timedelta(hours=1)
"""How long a rank waits for another one's word. The leader gives one at least every few packs, also while it holds; a rank
that has died is noticed by torchrun at once."""


class Group:
    """The ranks of a training; without arguments the one rank of a training in one process."""

    def __init__(self, rank: int = 0, size: int = 1, words: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self._words = words

    @property
    def leads(self) -> bool:
        """Whether this is the rank that decides, writes and tells."""
        return self.rank == 0

    def agree(self, ask: Callable[[], T]) -> T:
        """What ``ask`` gives on rank 0, on every rank. Only rank 0 calls it; each rank must come here."""
        if self._words is None:
            return ask()
        held: list[Any] = [ask() if self.leads else None]
        dist.broadcast_object_list(held, src=0, group=self._words)
        found: T = held[0]
        return found

    def gather(self, values: list[float]) -> list[list[float]]:
        """Each rank's ``values``, in the order of the ranks."""
        if self._words is None:
            return [values]
        own = torch.tensor(values, dtype=torch.float64)
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(all_of_them, own, group=self._words)
        return [found.tolist() for found in all_of_them]

    def gather_objects(self, value: T) -> list[T]:
        """Each rank's ``value``, in the order of the ranks."""
        if self._words is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._words)
        return found


@contextmanager
def joined(device: torch.device) -> Iterator[Group]:
    """Join the ranks that torchrun started (its environment says which one this is), and tell speculators of them.

    Its own set-up refuses a machine without an accelerator, though what it sets up works there.
    """
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        words = dist.new_group(backend="gloo", timeout=LIMIT)
        known = {
            "_rank": rank,
            "_world_size": size,
            "_local_rank": local,
            "_is_distributed": True,
            "_dp_size": size,
            "_dp_rank": rank,
        }
        with patch.dict(vars(topology), known):
            yield Group(rank, size, words)
    finally:
        dist.destroy_process_group()
