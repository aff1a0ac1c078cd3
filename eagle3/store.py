"""Hidden states on disk: one safetensors file a sample, a manifest that vouches for each, and the checks between them.

``states/hs_<index>.safetensors`` holds ``hidden_states`` [tokens, layers, hidden] and ``token_ids`` [tokens], the names
that speculators' offline loader reads, in the dtype that the target ran in (float32 or bfloat16: nothing is rounded here).
``states/manifest.jsonl`` says of each file what it must be, down to its SHA-256, so that a resume trusts none that has
changed. A file gets its name only once it was checked and is on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3.core.shape import BYTES_OF
from eagle3.rows import Row, append_row, read_whole_rows, write_rows
from eagle3.runner import rundir

if TYPE_CHECKING:
    import torch

_FILE_OVERHEAD = 4096


class StateError(ValueError):
    """A state file is not what was asked for; the message says what is wrong with it."""


@dataclass(frozen=True)
class StateRow:
    """A row of the manifest. ``made_of`` is the SHA-256 of the token ids and of what made the states (target, layers), so
    that a file of other tokens, of another model or of other layers is never taken."""

    index: int
    id: str
    split: str
    tokens: int
    bytes: int
    sha256: str
    made_of: str = ""


class StateStore:
    """The folder ``states`` of a run, for one list of layers of one target. ``made_with`` is a hash of whatever else the
    states depend on: those of another one are made again."""

    def __init__(self, folder: Path, *, layers: Sequence[int], hidden_size: int, made_with: str = "") -> None:
        self.folder = folder
        self.manifest = folder / "manifest.jsonl"
        self.raw = folder / "raw"
        self._layers = list(layers)
        self._hidden_size = hidden_size
        self._made_with = made_with
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, index: int) -> Path:
        return self.folder / f"hs_{index}.safetensors"

    def bytes_of(self, tokens: int, samples: int, dtype: str) -> int:
        """An estimate of the disk space of so many tokens in so many files."""
        return tokens * len(self._layers) * self._hidden_size * BYTES_OF[dtype] + samples * _FILE_OVERHEAD

    def adopt(self, raw: Path, sample: Row) -> StateRow:
        """Check a file that a server left and, when it is right, make it the sample's. Raises StateError, and the file
        stays where it is, when it is not."""
        try:
            content = raw.read_bytes()
        except OSError as error:
            raise StateError(f"the server's file {raw.name} cannot be read ({error.strerror})") from error
        check(content, sample["input_ids"], layers=len(self._layers), hidden_size=self._hidden_size)
        with raw.open("rb") as file:
            os.fsync(file.fileno())
        raw.replace(self.path(sample["index"]))
        return self._record(sample, content)

    def write(self, sample: Row, hidden_states: torch.Tensor) -> StateRow:
        """Store states made in this process, through the same checks."""
        import torch
        from safetensors.torch import save

        tensors = {"hidden_states": hidden_states.contiguous(), "token_ids": torch.tensor(sample["input_ids"], dtype=torch.long)}
        content: bytes = save(tensors)
        check(content, sample["input_ids"], layers=len(self._layers), hidden_size=self._hidden_size)
        rundir.write_bytes(self.path(sample["index"]), content)
        return self._record(sample, content)

    def whole(self, samples: Iterable[Row]) -> dict[int, StateRow]:
        """The samples whose file is there and is, byte for byte, the one that the manifest vouches for.

        Files that are not are deleted, and the manifest is rewritten without them: they are made again.
        """
        try:
            recorded = {row["index"]: StateRow(**row) for row in read_whole_rows(self.manifest)}
        except (ValueError, TypeError, KeyError):
            # A manifest that cannot be read vouches for nothing.
            recorded = {}
        good: dict[int, StateRow] = {}
        for sample in samples:
            row = recorded.get(sample["index"])
            if row is not None and row.made_of == self._made_of(sample) and self._intact(row):
                good[row.index] = row
        for file in self.folder.glob("hs_*"):
            if file.name not in {self.path(index).name for index in good}:
                file.unlink()
        self.seal(good)
        return good

    def seal(self, rows: dict[int, StateRow]) -> None:
        """Write the manifest whole, in the samples' order."""
        write_rows(self.manifest, [asdict(rows[index]) for index in sorted(rows)])

    def clear_raw(self) -> int:
        """Delete what a server left behind (states nobody asked for, lock files); the number of files."""
        left = sum(1 for _ in self.raw.iterdir()) if self.raw.is_dir() else 0
        shutil.rmtree(self.raw, ignore_errors=True)
        return left

    def load(self, index: int) -> dict[str, torch.Tensor]:
        """The tensors of a sample."""
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = load_file(self.path(index))
        return tensors

    def _record(self, sample: Row, content: bytes) -> StateRow:
        row = StateRow(
            index=sample["index"], id=sample["id"], split=sample["split"], tokens=len(sample["input_ids"]),
            bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), made_of=self._made_of(sample),
        )  # fmt: skip
        append_row(self.manifest, asdict(row))
        return row

    def _made_of(self, sample: Row) -> str:
        made = [self._made_with, self._layers, list(sample["input_ids"])]
        return hashlib.sha256(json.dumps(made, separators=(",", ":")).encode()).hexdigest()

    def _intact(self, row: StateRow) -> bool:
        path = self.path(row.index)
        try:
            if path.stat().st_size != row.bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == row.sha256
        except FileNotFoundError:
            return False


def check(content: bytes, token_ids: Sequence[int], *, layers: int, hidden_size: int) -> None:
    """Raise StateError unless ``content`` is a safetensors file with the states of exactly these tokens: one row a token,
    ``layers`` layers of ``hidden_size`` values, all finite, and no layer constant, all zero at a token or the copy of
    another."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Any] = load(content)
    except SafetensorError as error:
        raise StateError(f"not a whole safetensors file ({error})") from error
    if lacking := {"hidden_states", "token_ids"} - tensors.keys():
        raise StateError(f"it lacks {' and '.join(sorted(lacking))}")
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    if ids.tolist() != list(token_ids):
        raise StateError(f"its {ids.numel()} token ids are not the {len(token_ids)} asked for")
    expected = (len(token_ids), layers, hidden_size)
    if tuple(states.shape) != expected:
        raise StateError(f"its states have the shape {list(states.shape)}, not {list(expected)} (tokens, layers, hidden)")
    if not states.is_floating_point():
        raise StateError(f"its states are {states.dtype}, not floating point")
    if not bool(torch.isfinite(states).all()):
        raise StateError("some of its states are NaN or infinite")
    for layer in range(layers):
        values = states[:, layer]
        if bool((values == values.flatten()[0]).all()):
            raise StateError(f"its layer {layer} of {layers} is constant")
        if bool((values == 0).all(dim=1).any()):
            raise StateError(f"its layer {layer} of {layers} is all zero at a token")
        if layer and torch.equal(values, states[:, layer - 1]):
            raise StateError(f"its layers {layer - 1} and {layer} are the same")
