"""Hidden states on disk: one safetensors file a sample, and a manifest that vouches for each.

``states/hs_<index>.safetensors`` holds ``hidden_states`` [tokens, layers, hidden] and ``token_ids`` [tokens], the names
that speculators' offline loader reads, in the precision of ``extract.storage`` (``eagle3.states.packing``).
``states/manifest.jsonl`` says of each file what it must be, down to its SHA-256, so that a resume trusts none that has
changed. A file gets its name only once it was checked and is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3.core.shape import BYTES_OF, state_value_bytes
from eagle3.rows import Row, append_row, read_rows_past_torn, write_rows
from eagle3.runner import rundir
from eagle3.states import packing
from eagle3.states.checking import MixedUp, StateError, check, mark, parse, read_states
from eagle3.states.looked import Looked

if TYPE_CHECKING:
    import torch

_FILE_OVERHEAD = 4096


@dataclass(frozen=True)
class StateRow:
    """A row of the manifest. ``made_of`` is the SHA-256 of the token ids and of what made the states (target, layers), so
    that a file of other tokens, of another model or of other layers is never taken. ``mark``: of the last token's states, as
    they landed; empty in manifests of older versions."""

    index: int
    id: str
    split: str
    tokens: int
    bytes: int
    sha256: str
    made_of: str = ""
    mark: str = ""

    def as_row(self) -> Row:
        """As the manifest has it; an older version's row stays byte for byte what it was."""
        return {name: value for name, value in asdict(self).items() if name != "mark" or value}


class StateStore:
    """The folder ``states`` of a run, for one list of layers of one target. ``made_with`` is a hash of whatever else the
    states depend on: those of another one are made again. ``dtype``: what the target runs in (``target.dtype``). ``storage``: as
    in ``extract.storage``. ``adopt`` and ``write`` may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        *,
        layers: Sequence[int],
        hidden_size: int,
        made_with: str = "",
        dtype: str = "auto",
        storage: str = "target",
    ) -> None:
        self.folder = folder
        self.manifest = folder / "manifest.jsonl"
        self.raw = folder / "raw"
        self._layers = list(layers)
        self._hidden_size = hidden_size
        self._made_with = made_with
        self._dtype = dtype
        self._storage = storage
        self._marks: dict[str, tuple[int, str]] = {}
        self._seen: dict[str, os.stat_result] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, index: int) -> Path:
        return self.folder / f"hs_{index}.safetensors"

    def bytes_of(self, tokens: int, samples: int) -> int:
        """An estimate of the disk space of so many tokens in so many files."""
        return tokens * self._values * state_value_bytes(self._storage, self._dtype) + samples * _FILE_OVERHEAD

    def landing_bytes(self, tokens: int) -> int:
        """The most disk space that one sample takes while it lands: what is stored, and the server's file where it differs."""
        beside = 0 if self._storage == "target" else tokens * self._values * BYTES_OF[self._dtype] + _FILE_OVERHEAD
        return self.bytes_of(tokens, 1) + beside

    def adopt(self, raw: Path, sample: Row, *, keep: bool = False) -> StateRow:
        """Check a file that a server left and, when it is right, make it the sample's. Raises StateError, and the file
        stays where it is, when it is not. ``keep``: the file is somebody's, so it gets a second name (a copy where the file
        system gives none) instead of a new one."""
        content = read_states(raw, self._most_bytes(len(sample["input_ids"])), links=keep)
        tensors = parse(content)
        row = self._checked(sample, tensors)
        packed = packing.pack(tensors, self._storage)
        if packed["hidden_states"].dtype != tensors["hidden_states"].dtype:
            content = self._save(sample, packed)
        elif keep:
            self._second_name(raw, sample, content)
        else:
            with raw.open("rb") as file:
                os.fsync(file.fileno())
            try:
                raw.replace(self.path(sample["index"]))
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # A server that somebody else has started writes where it was told to.
                rundir.write_bytes(self.path(sample["index"]), content)
        return self._record(row, content)

    def take_over(self, file: Path, row: StateRow, sample: Row) -> StateRow:
        """Give the states of another run's store, which were made in the same way, a second name here. Raises StateError where
        they were not, or where the file is not what that store's manifest says."""
        if row.made_of != self._made_of(sample):
            raise StateError("they are of other tokens, or another model or other layers made them")
        content = read_states(file, self._most_bytes(len(sample["input_ids"])), links=True)
        if hashlib.sha256(content).hexdigest() != row.sha256:
            raise StateError(f"{file.name} is not what the manifest says")
        self._claim(row)
        self._second_name(file, sample, content)
        return self._record(row, content)

    def write(self, sample: Row, hidden_states: torch.Tensor) -> StateRow:
        """Store states made in this process, through the same checks."""
        import torch

        tensors = {"hidden_states": hidden_states.contiguous(), "token_ids": torch.tensor(sample["input_ids"], dtype=torch.long)}
        row = self._checked(sample, tensors)
        return self._record(row, self._save(sample, packing.pack(tensors, self._storage)))

    def whole(
        self,
        samples: Iterable[Row],
        *,
        rehash: bool = True,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[int, StateRow]:
        """The samples whose file is there and is, byte for byte, the one that the manifest vouches for.

        Files that are not are deleted, and the manifest is rewritten without them: they are made again. ``tell`` hears of the
        bytes seen so far and of all, before each file, and may raise. With ``rehash`` false a file that has not changed since
        an earlier look is not read again.
        """
        recorded: dict[int, StateRow] = {}
        for told in read_rows_past_torn(self.manifest):
            with contextlib.suppress(TypeError):  # a row that is none vouches for nothing, and the others for theirs
                found = StateRow(**told)
                recorded[found.index] = found
        vouched = [
            row
            for sample in samples
            if (row := recorded.get(sample["index"])) is not None and row.made_of == self._made_of(sample)
        ]
        looked, seen, total = Looked(self.folder), 0, sum(row.bytes for row in vouched)
        good: dict[int, StateRow] = {}
        self._seen = {}
        for row in vouched:
            tell(seen, total)
            if self._intact(row, looked, rehash=rehash):
                good[row.index] = row
                if row.mark:
                    self._marks[row.mark] = (row.index, row.made_of)
            seen += row.bytes
        tell(seen, total)
        names = {self.path(index).name for index in good}
        for file in self.folder.glob("hs_*"):
            if file.name not in names:
                file.unlink()
        self.seal(good)
        return good

    def seal(self, rows: dict[int, StateRow]) -> None:
        """Write the manifest whole, in the samples' order."""
        write_rows(self.manifest, [rows[index].as_row() for index in sorted(rows)])
        self.remember()

    def remember(self) -> None:
        """Keep how the files lie on the disk that were hashed, in a look or as they landed, so that a look with ``rehash``
        false need not read them again. Raises OSError."""
        looked = Looked(self.folder)
        with self._lock:
            for name, about in self._seen.items():
                looked.right(name, about)
        looked.write()

    def clear_raw(self) -> int:
        """Delete what a server left behind (states nobody asked for, lock files); the number of files."""
        left = sum(1 for _ in self.raw.iterdir()) if self.raw.is_dir() else 0
        shutil.rmtree(self.raw, ignore_errors=True)
        return left

    def load(self, index: int) -> dict[str, torch.Tensor]:
        """The tensors of a sample, as they are used."""
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = load_file(self.path(index))
        return packing.unpack(tensors)

    def _most_bytes(self, tokens: int) -> int:
        """More than the states of so many tokens can be, in whatever precision, with whatever small tensors beside them."""
        return tokens * (self._values * 8 + 256) + (16 << 20)

    @property
    def _values(self) -> int:
        return len(self._layers) * self._hidden_size

    def _checked(self, sample: Row, tensors: dict[str, torch.Tensor]) -> StateRow:
        """The manifest's row of right states, still without their file. Raises StateError."""
        tensors = packing.unpack(tensors)
        check(tensors, sample["input_ids"], layers=len(self._layers), hidden_size=self._hidden_size, dtype=self._dtype)
        found, made_of = mark(tensors["hidden_states"]), self._made_of(sample)
        row = StateRow(sample["index"], sample["id"], sample["split"], len(sample["input_ids"]), 0, "", made_of, found)
        self._claim(row)
        return row

    def _claim(self, row: StateRow) -> None:
        """Take the mark of a sample's last token. Raises MixedUp where a sample of other tokens has it."""
        with self._lock:
            index, other = self._marks.setdefault(row.mark, (row.index, row.made_of)) if row.mark else (row.index, row.made_of)
            if other != row.made_of:
                del self._marks[row.mark]
                raise MixedUp(index)

    def _save(self, sample: Row, tensors: dict[str, torch.Tensor]) -> bytes:
        from safetensors.torch import save

        content: bytes = save(tensors)
        rundir.write_bytes(self.path(sample["index"]), content)
        return content

    def _second_name(self, raw: Path, sample: Row, content: bytes) -> None:
        target = self.path(sample["index"])
        target.unlink(missing_ok=True)
        try:
            os.link(raw.resolve(), target)
        except OSError:  # another file system, or one without hard links
            rundir.write_bytes(target, content)

    def _record(self, row: StateRow, content: bytes) -> StateRow:
        row = replace(row, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        about = self.path(row.index).stat()
        with self._lock:
            append_row(self.manifest, row.as_row())
            if about.st_size == row.bytes:
                self._seen[self.path(row.index).name] = about
        return row

    def _made_of(self, sample: Row) -> str:
        made = [self._made_with, self._layers, list(sample["input_ids"])]
        return hashlib.sha256(json.dumps(made, separators=(",", ":")).encode()).hexdigest()

    def _intact(self, row: StateRow, looked: Looked, *, rehash: bool) -> bool:
        path = self.path(row.index)
        try:
            about = path.stat()
            if about.st_size != row.bytes:
                return False
            if rehash or not looked.unchanged(path.name, about):
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != row.sha256:
                        return False
        except FileNotFoundError:
            return False
        self._seen[path.name] = about
        return True
