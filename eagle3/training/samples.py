"""The rows of ``data/samples.jsonl`` as training sees them, split by their own ``split`` field."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eagle3.stages.context import StageError

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Sample:
    """One conversation in tokens. ``loss_mask`` is 1 on the tokens that the target wrote.

    What is read from a file holds both packed, 5 bytes a token where lists of numbers take 46 (measured): every rank and each
    of its loaders has all samples in memory, 40 processes and 207 million tokens in a full run on eight GPUs: 380 GB.
    """

    index: int
    split: Split
    input_ids: Sequence[int]
    loss_mask: Sequence[int]

    @property
    def supervised(self) -> list[int]:
        """The ids of the tokens that the target wrote."""
        return [token for token, mask in zip(self.input_ids, self.loss_mask, strict=True) if mask]


def read_samples(path: Path, without: Collection[int] = ()) -> dict[Split, list[Sample]]:
    """Read the rows, sorted by index; ``without``: indices of samples that have no states.

    Raises StageError where the file is missing, a row is not one, or a split is empty.
    """
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage 'regenerate' first.")
    by_split: dict[Split, list[Sample]] = {"train": [], "heldout": []}
    for number, row in _rows(path):
        try:
            sample = Sample(int(row["index"]), row["split"], array("i", row["input_ids"]), bytes(row["loss_mask"]))
            whole = sample.split in by_split and len(sample.input_ids) == len(sample.loss_mask)
        except (KeyError, TypeError, ValueError, OverflowError):
            whole = False
        if not whole:
            raise StageError(f"Line {number} of {path} is not a sample (split, input_ids and loss_mask); run 'regenerate' again.")
        if sample.index not in without:
            by_split[sample.split].append(sample)
    for split, samples in by_split.items():
        if not any(any(sample.loss_mask) for sample in samples):
            raise StageError(f"{path} holds no answer of the target in split '{split}'; run the stage 'regenerate' again.")
        samples.sort(key=lambda sample: sample.index)
    return by_split


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise StageError(f"Line {number} of {path} is not JSON; run the stage 'regenerate' again.") from error
