"""The rows of ``data/samples.jsonl`` as training sees them, split by their own ``split`` field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eagle3.stages.context import StageError

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Sample:
    """One conversation in tokens. ``loss_mask`` is 1 on the tokens that the target wrote."""

    index: int
    split: Split
    input_ids: list[int]
    loss_mask: list[int]

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
        if row.get("split") not in by_split or len(row.get("input_ids", ())) != len(row.get("loss_mask", ())):
            raise StageError(f"Line {number} of {path} is not a sample (split, input_ids and loss_mask); run 'regenerate' again.")
        if row["index"] in without:
            continue
        by_split[row["split"]].append(Sample(int(row["index"]), row["split"], row["input_ids"], row["loss_mask"]))
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
