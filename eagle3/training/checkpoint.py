"""Checkpoints that a killed run can trust: whole or absent, in float32, and exact.

speculators' own checkpointer keeps optimizer state in bfloat16 (step 257 comes back as 256), saves in place, and resumes
from the highest-numbered folder, torn or not. Here a checkpoint is written under a temporary name, each file is synced,
the marker that names sizes and hashes comes last, then one rename. Only folders with a marker of ours are ever deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3.runner import rundir

MARKER = "complete.json"
KIND = "eagle3-train-checkpoint"
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk. ``signature`` says what it may be resumed with."""

    path: Path
    step: int
    signature: str

    @property
    def bytes(self) -> int:
        """Its size on disk."""
        return sum(file.stat().st_size for file in self.path.iterdir())

    def load(self, device: torch.device) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Its weights by name, and its state as it was given to ``save``."""
        weights = load_file(self.path / "weights.safetensors", device=str(device))
        state = torch.load(self.path / "state.pt", map_location="cpu", weights_only=True)
        return weights, state


class CheckpointStore:
    """The checkpoints of one training in one folder. ``signature`` is the hash of all that makes a resume exact."""

    def __init__(self, folder: Path, signature: str, keep_last: int) -> None:
        self.folder = folder
        self.signature = signature
        self.keep_last = keep_last
        self.kept: set[int] = set()
        """Steps whose checkpoints are kept beside the last ones."""

    def save(self, step: int, weights: dict[str, torch.Tensor], state: dict[str, Any]) -> Checkpoint:
        """Write ``step-<n>`` durably, then delete the oldest of ours beyond ``keep_last`` (save those of ``kept``); those that
        cannot be gone on from (of another signature) go first, however many steps they count.

        ``weights`` are stored as they are; ``state`` may hold tensors, numbers, strings, lists and dicts.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sweep()
        partial = self.folder / f".partial-step-{step}"
        partial.mkdir()
        try:
            save_file({name: part.detach().contiguous().cpu() for name, part in weights.items()}, partial / "weights.safetensors")
            torch.save(state, partial / "state.pt")
            files = {path.name: _seal(path) for path in sorted(partial.iterdir())}
            marker = {"v": 1, "kind": KIND, "step": step, "signature": self.signature, "files": files, "t": time.time()}
            rundir.write_json(partial / MARKER, marker)
        except BaseException:
            # On a full disk it would take the room in which the failure could be told.
            shutil.rmtree(partial, ignore_errors=True)
            raise
        final = self.folder / f"step-{step}"
        if final.exists():
            self._clear_the_way(final)
        partial.rename(final)
        _sync(self.folder)
        self.prune()
        return Checkpoint(final, step, self.signature)

    def newest(self) -> Checkpoint | None:
        """The complete checkpoint of this signature with the most steps; torn and foreign ones are passed over."""
        for step, path in sorted(self._ours(), reverse=True):
            marker = rundir.read_json(path / MARKER)
            if marker["signature"] == self.signature and _whole(path, marker):
                return Checkpoint(path, step, self.signature)
        return None

    def passed_over(self) -> Checkpoint | None:
        """The complete checkpoint with the most steps that cannot be gone on from: it is of another signature."""
        for step, path in sorted(self._ours(), reverse=True):
            marker = rundir.read_object(path / MARKER)
            if marker.get("signature") != self.signature and _whole(path, marker):
                return Checkpoint(path, step, str(marker["signature"]))
        return None

    def at(self, step: int) -> Checkpoint | None:
        """The complete checkpoint of a step, of whatever signature; for a fork, which knows what it changes."""
        for found, path in self._ours():
            marker = rundir.read_object(path / MARKER)
            if found == step and _whole(path, marker):
                return Checkpoint(path, step, str(marker["signature"]))
        return None

    def _ours(self) -> list[tuple[int, Path]]:
        """Folders that carry a marker of this module and are named after its step."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = _NAME.fullmatch(path.name)
            if name is None or path.is_symlink() or not path.is_dir():
                continue
            marker = rundir.read_object(path / MARKER)
            if marker.get("kind") == KIND and marker.get("step") == int(name[1]):
                found.append((int(name[1]), path))
        return found

    def prune(self) -> None:
        """Delete the oldest of ours beyond ``keep_last``, save those of ``kept``."""

        def worth(own: tuple[int, Path]) -> tuple[bool, int]:
            step, path = own
            return rundir.read_object(path / MARKER).get("signature") == self.signature, step

        for step, path in sorted(self._ours(), key=worth, reverse=True)[self.keep_last :]:
            if step not in self.kept:
                self._drop(path)

    def _drop(self, path: Path) -> None:
        """Delete one of ours. A kill in the middle may have taken the marker first, by which it is known as ours; so it loses its
        name before, and what is left of it is swept."""
        gone = path.with_name(f".partial-{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)

    def sweep(self) -> None:
        """Drop what a killed attempt left half written or half deleted."""
        for path in self.folder.glob(".partial-step-*"):
            shutil.rmtree(path)

    def _clear_the_way(self, path: Path) -> None:
        """Make room for a step saved before: ours is replaced, anything else is put aside."""
        if path in [own for _, own in self._ours()]:
            self._drop(path)
        else:
            path.rename(path.with_name(f"{path.name}.aside-{time.time_ns()}"))


def _whole(path: Path, marker: dict[str, Any]) -> bool:
    """Whether every file that the marker names is there with its size and hash."""
    for name, seal in marker["files"].items():
        file = path / name
        if not file.is_file() or file.stat().st_size != seal["bytes"] or _sha256(file) != seal["sha256"]:
            return False
    return True


def _seal(path: Path) -> dict[str, Any]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
