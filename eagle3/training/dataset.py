"""Hidden states from disk to packed batches, in the shapes that speculators' model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from speculators.data_generation.offline import check_hidden_states
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import BaseDataset, CollateFn
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2
from torch.utils.data import DataLoader

from eagle3.core.shape import PACKS_AHEAD
from eagle3.stages.context import StageError
from eagle3.states.packing import unpack
from eagle3.training.samples import Sample


class StatesDataset(BaseDataset):
    """Samples with their hidden states ``[tokens, layers, hidden]``: the last layer apart, the others side by side.

    Reading a sample raises StageError where its file is missing, torn, of other tokens, or not finite: training on such
    states goes on quietly and ends in a draft that accepts nothing.
    """

    def __init__(self, samples: list[Sample], states_dir: Path, max_len: int, dtype: torch.dtype) -> None:
        self.samples = samples
        self.states_dir = states_dir
        super().__init__(max_len, dtype)

    def __len__(self) -> int:
        return len(self.samples)

    def _compute_approx_lengths(self) -> list[int]:
        return [len(sample.input_ids) for sample in self.samples]

    def _get_raw_data(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        path = self.states_dir / f"hs_{sample.index}.safetensors"
        try:
            loaded = unpack(load_file(path), self.hidden_states_dtype)
            check_hidden_states(loaded, list(sample.input_ids))
        except (OSError, SafetensorError, ValueError) as error:
            raise StageError(
                f"{path} cannot be trained on; delete it and resume, so that 'extract' makes it again.", detail=str(error)
            ) from error
        states = loaded["hidden_states"]
        return {
            "hidden_states": states[:, :-1].flatten(1),
            "input_ids": loaded["token_ids"],
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": torch.tensor(list(sample.loss_mask), dtype=torch.bool),
        }


class Collate:
    """Pack samples into one sequence. ``trim`` drops the padding at its end: shapes may then differ from step to step,
    which costs nothing where nothing is compiled, and saves a tenth of each step. ``shifted``: as the kind of draft wants it."""

    def __init__(self, pack_tokens: int, hidden_size: int, dtype: torch.dtype, *, trim: bool, shifted: bool = True) -> None:
        self._collate = CollateFn(pack_tokens, hidden_size, dtype=dtype, preprocess=shift_batch if shifted else None)
        self._trim = trim

    def __call__(self, batch: list[Any]) -> dict[str, Any]:
        packed: dict[str, Any] = self._collate(batch)
        if not self._trim:
            return packed
        used = int((packed["document_ids"] != -1).sum())
        return {key: value[:, :used] if isinstance(value, torch.Tensor) else value for key, value in packed.items()}


class StepSampler:
    """The packs of one rank, step after step: of the ``packs`` of each optimizer step (of all ranks together) its own share.

    Which samples lie in which pack of which step follows from (seed, epoch, packs) alone, not from the number of ranks: so
    any number of ranks that divides ``packs`` trains on the same steps. It has the parts that speculators' loop takes up
    an epoch in the middle with.
    """

    def __init__(self, dataset: StatesDataset, seed: int, packs: int, rank: int, ranks: int) -> None:
        share = packs // ranks
        self._slots = [
            MultipackDistributedBatchSamplerV2(
                batch_max_length=dataset.max_len, lengths=dataset.approx_lengths, num_replicas=packs, rank=slot, seed=seed
            )
            for slot in range(rank * share, (rank + 1) * share)
        ]
        self.epoch = 0
        self._cached_generated_batches: tuple[int, list[Any]] = (-1, [])

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order comes next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._generate_batches(self.epoch))

    def __len__(self) -> int:
        return len(self._generate_batches(self.epoch))

    def _generate_batches(self, epoch: int) -> list[Any]:
        if self._cached_generated_batches[0] != epoch:
            steps = zip(*(slot._generate_batches(epoch) for slot in self._slots), strict=True)
            self._cached_generated_batches = (epoch, [pack for step in steps for pack in step])
        return self._cached_generated_batches[1]


class OrError:
    """Reads and packs samples in a loader's process; where it cannot, the error is given in the pack's place. Raised there, torch
    would make another one of it, whose text is a traceback."""

    def __init__(self, dataset: StatesDataset, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, pack: Sequence[int]) -> dict[str, Any] | StageError:
        try:
            return self._collate([self._dataset[int(index)] for index in pack])
        except StageError as error:
            return error


def _as_it_is(pack: Any) -> Any:
    """The pack, packed already (a function by name: a loader's process must find it)."""
    return pack


class PackLoader(DataLoader[Any]):
    """torch's loader, which raises here what went wrong in its processes, in the words in which it went wrong there."""

    def __iter__(self) -> Iterator[Any]:
        for pack in super().__iter__():
            if isinstance(pack, StageError):
                raise pack
            yield pack


def train_loader(
    dataset: StatesDataset,
    collate: Collate,
    seed: int,
    workers: int,
    *,
    packs: int = 1,
    rank: int = 0,
    ranks: int = 1,
    pin: bool = False,
) -> DataLoader[Any]:
    """Batches in an order that follows from (seed, epoch) alone, so that a resume can take it up anywhere; see `StepSampler`.
    ``pin``: in memory that a GPU copies from by itself, while it computes; other memory is copied twice, and waited for.

    Raises StageError where the samples do not fill the packs of one step.
    """
    if len(dataset) < packs:
        raise StageError(
            f"{len(dataset)} training samples do not fill the {packs} packs of a step; use more prompts, or lower "
            "train.packs_per_step (or the ranks that it follows from)."
        )
    return PackLoader(
        OrError(dataset, collate),
        batch_sampler=StepSampler(dataset, seed, packs, rank, ranks),
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=PACKS_AHEAD if workers else None,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        # Each start of an epoch draws a seed; from the training's own source a resume in its middle would draw once more.
        generator=torch.Generator().manual_seed(seed),
    )


def fixed_packs(dataset: StatesDataset) -> list[list[int]]:
    """All samples in their own order, packed as they come: the same packs in every evaluation of every run."""
    packs: list[list[int]] = [[]]
    used = 0
    for index, length in enumerate(dataset.approx_lengths):
        if packs[-1] and used + length > dataset.max_len:
            packs.append([])
            used = 0
        packs[-1].append(index)
        used += length
    return packs
