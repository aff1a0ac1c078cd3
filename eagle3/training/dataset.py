"""Hidden states from disk to packed batches, in the shapes that speculators' model takes."""

from __future__ import annotations

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
            check_hidden_states(loaded, sample.input_ids)
        except (OSError, SafetensorError, ValueError) as error:
            raise StageError(
                f"{path} cannot be trained on; delete it and resume, so that 'extract' makes it again.", detail=str(error)
            ) from error
        states = loaded["hidden_states"]
        return {
            "hidden_states": states[:, :-1].flatten(1),
            "input_ids": loaded["token_ids"],
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": torch.tensor(sample.loss_mask, dtype=torch.bool),
        }


class Collate:
    """Pack samples into one sequence. ``trim`` drops the padding at its end: shapes may then differ from step to step,
    which costs nothing where nothing is compiled, and saves a tenth of each step."""

    def __init__(self, pack_tokens: int, hidden_size: int, dtype: torch.dtype, *, trim: bool) -> None:
        self._collate = CollateFn(pack_tokens, hidden_size, dtype=dtype, preprocess=shift_batch)
        self._trim = trim

    def __call__(self, batch: list[Any]) -> dict[str, Any]:
        packed: dict[str, Any] = self._collate(batch)
        if not self._trim:
            return packed
        used = int((packed["document_ids"] != -1).sum())
        return {key: value[:, :used] if isinstance(value, torch.Tensor) else value for key, value in packed.items()}


def train_loader(dataset: StatesDataset, collate: Collate, seed: int, workers: int) -> DataLoader[Any]:
    """Batches in an order that follows from (seed, epoch) alone, so that a resume can take it up anywhere."""
    sampler = MultipackDistributedBatchSamplerV2(
        batch_max_length=dataset.max_len, lengths=dataset.approx_lengths, num_replicas=1, rank=0, seed=seed
    )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
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
