"""Reading what speculators leaves: ``prepare-data``'s dataset (``input_ids``, ``loss_mask``) and ``generate-offline-data``'s
``hidden_states/hs_<row>.safetensors``.

Its files are numbered by the dataset's rows and say neither which target nor which layers they are of, so that is for the spec to
say and for the shapes to contradict.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3.rows import Row, encode
from eagle3.runner.errors import VerbError

_STATE_FILE = re.compile(r"hs_(0|[1-9][0-9]*)\.safetensors")
"""As they are written there: hs_07, or other scripts' digits, would be a second name of the same row."""
_ID_CHARACTERS = 200
NEEDED = ("input_ids", "loss_mask")


def is_one(folder: Path) -> bool:
    """Whether the folder is a dataset on disk."""
    return (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()


def state_files(folder: Path) -> dict[int, Path]:
    """The state files of a folder by their number."""
    named = ((_STATE_FILE.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ()))
    return {int(found[1]): path for found, path in named if found}


def read(folder: Path) -> list[Row]:
    """The dataset as rows ``{"index","id","input_ids","loss_mask"}``.

    Raises VerbError (usage) where it cannot be read, lacks a column, a mask does not fit its tokens, or an id stands twice.
    """
    try:
        from datasets import load_from_disk

        dataset: Any = load_from_disk(str(folder)).with_format(None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(folder, error) from error
    if lacking := [name for name in NEEDED if name not in dataset.column_names]:
        raise VerbError(
            "usage",
            f"The dataset in {folder} has no {' and no '.join(lacking)}, so it is not known what the draft is to learn from.",
            "Make it with `speculators prepare-data`, which writes both.",
        )
    with_id = "id" in dataset.column_names
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for index, item in enumerate(_items(folder, dataset)):
        ids, mask = item["input_ids"], item["loss_mask"]
        if not _integers(ids) or not _integers(mask) or min(ids, default=0) < 0:
            raise VerbError("usage", f"Row {index} of {folder} holds what is no token or no mask.", "Prepare the data anew.")
        mask = [int(bool(bit)) for bit in mask]
        if len(ids) != len(mask) or not ids:
            raise VerbError(
                "usage",
                f"Row {index} of {folder} has {len(ids)} tokens and a loss mask of {len(mask)}.",
                "Prepare the data anew.",
            )
        name = str(item["id"]) if with_id else f"row-{index}"
        if not name.isprintable() or len(name) > _ID_CHARACTERS:
            raise VerbError(
                "usage", f"The id of row {index} of {folder} has control characters or more than {_ID_CHARACTERS}.",
                "Give it a plain one.",
            )  # fmt: skip
        if name in seen:
            raise VerbError(
                "usage", f"Rows {seen[name]} and {index} of {folder} have the same id '{name}'.", "Give each row its own id."
            )
        seen[name] = index
        rows.append({"index": index, "id": name, "input_ids": ids, "loss_mask": mask})
    if not rows:
        raise VerbError("usage", f"The dataset in {folder} is empty.", "Prepare the data anew.")
    return rows


def _items(folder: Path, dataset: Any) -> Iterator[Any]:
    """The rows; a file that ends early shows only here."""
    try:
        yield from dataset
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> VerbError:
    why = next(iter(str(error).splitlines()), "") or type(error).__name__
    return VerbError("usage", f"The dataset in {folder} cannot be read ({why}).", "Give the folder of prepare-data.")


def _integers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) for value in values)


def different(rows: list[Row]) -> tuple[dict[str, Row], int]:
    """The rows by the hash of their tokens, and how many repeat the tokens of an earlier one: those are left out."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(_hash(row), row)
    return first, len(rows) - len(first)


def _hash(row: Row) -> str:
    return hashlib.sha256(encode({"ids": row["input_ids"]})).hexdigest()[:16]


def split(rows: list[Row], heldout: int, evaluated: Callable[[Row], bool]) -> tuple[list[Row], int]:
    """The rows that there is something to learn from, as samples of a run, and how many of them are ``evaluated``.

    Those that are evaluated are kept out of the training, however many they are; where they are fewer than ``heldout``, others
    are too, by the hash of their tokens. Raises VerbError (usage) where none is left to train on.
    """
    taught = {_hash(row): row for row in rows if any(row["loss_mask"][1:])}
    if len(taught) <= heldout:
        raise VerbError(
            "usage",
            f"{len(taught)} samples can be trained on, and data.heldout_prompts keeps {heldout} of them out of the training.",
            "Lower data.heldout_prompts (and evaluate.prompts), or import more.",
        )
    asked = {key for key, row in taught.items() if evaluated(row)}
    if len(asked) == len(taught):
        raise VerbError(
            "usage",
            f"All {len(taught)} samples begin with a prompt that the draft is to be evaluated on, so none is left to train on.",
            "Lower data.heldout_prompts (and evaluate.prompts), or set data.prompts to a file of other prompts.",
        )
    others = [key for key in sorted(taught) if key not in asked]
    held = asked | set(others[: max(0, heldout - len(asked))])
    samples = [
        {
            "index": row["index"], "id": row["id"], "kind": "imported", "hash": key,
            "split": "heldout" if key in held else "train",
            "input_ids": row["input_ids"], "loss_mask": row["loss_mask"], "prompt_tokens": row["loss_mask"].index(1),
        }
        for key, row in taught.items()
    ]  # fmt: skip
    return sorted(samples, key=lambda sample: sample["index"]), len(asked)
